// The demands of a GPU on training, evaluation and measurement, tested without one: every recipe
// runs on a device that is not the CPU (second_device.h), where an operation on a batch that nobody
// has moved fails.
#include "tests/second_device.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <map>

#include "demi/data/prefetch_loader.h"
#include "demi/data/to_device.h"
#include "demi/train/trainer.h"
#include "lab/bench/recipe.h"
#include "lab/recipes/run.h"
#include "lab/settings/recipe.h"
#include "lab/workload/batch_size.h"
#include "tests/recorded_graph.h"
#include "tests/small_recipes.h"

namespace {

using demi::data::Batch;
using demi::settings::parse_run;
using demi::train::History;
using second_device::kDevice;

class Folder {
 public:
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "demi-device-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

class Recipes : public ::testing::TestWithParam<std::string> {
 protected:
  std::vector<double> losses(const demi::settings::Config& config, const char* precision,
                             c10::Device device) {
    const auto workload = demi::workload::load_workload(config, device);
    const auto result =
        demi::recipes::run(demi::settings::resolve(config, parse_run(precision), device), workload,
                           {.folder = folder_.path()});
    EXPECT_FALSE(result.history.failed) << result.history.failed.value_or("");
    EXPECT_EQ(workload.test != nullptr, result.test_accuracy_fp32_eval.has_value());
    std::vector<double> all;
    for (const auto& step : result.history.steps) all.push_back(step.loss);
    return all;
  }

  Folder folder_;
};

/// Of two steps; the second one's loss shows the first one's gradients.
void expect_close(const std::vector<double>& losses, const std::vector<double>& expected,
                  double first, double second) {
  ASSERT_EQ(losses.size(), 2u);
  EXPECT_NEAR(losses[0], expected[0], first * std::fabs(expected[0]));
  EXPECT_NEAR(losses[1], expected[1], second * std::fabs(expected[1]));
}

TEST_P(Recipes, TrainAndTestOnASecondDeviceAsOnTheCpu) {
  const auto config = small_recipes::of(GetParam(), folder_.path());
  const auto expected = losses(config, "fp32", c10::kCPU);
  ASSERT_EQ(expected.size(), 2u);
  // Four examples through 50 normalisations: rounding shows. In FP32 the gradients of a ResNet-50
  // of eight pictures are 1e-2 of FP64's away from them, by LibTorch's operators and by demi's,
  // which the device does not have.
  const bool is_deep = GetParam().ends_with("resnet50");
  expect_close(losses(config, "fp32", kDevice), expected, 1e-3, is_deep ? 0.1 : 1e-3);
  expect_close(losses(config, "bf16", kDevice), expected, 0.25, 0.25);
}

INSTANTIATE_TEST_SUITE_P(OfTheTable, Recipes, ::testing::ValuesIn(small_recipes::names()),
                         [](const auto& test) { return small_recipes::plain(test.param); });

TEST(SecondDevice, RefusesOperandsOfTwoDevices) {
  const at::Tensor here = at::ones({2, 2}, kDevice), there = at::ones({2, 2});
  EXPECT_THROW(at::mm(here, there), c10::Error);
  EXPECT_THROW(here + there, c10::Error);
  EXPECT_EQ((here + at::ones({})).sum().item<float>(), 8);
  EXPECT_EQ((at::ones({}) + here).device(), kDevice);
}

// A loader as users write them: tensors of the CPU, and a mask in place of lengths.
class Masked : public demi::data::Loader {
 public:
  int64_t examples() const override { return 8; }
  int64_t batches() const override { return 2; }
  Batch batch(int64_t, int64_t position) const override {
    const at::Tensor rows = at::arange(16, at::kFloat).view({4, 4}) * 0.1 + position;
    return {rows, rows.sum(1, true), rows > 0.3};
  }
};

demi::train::Network masked_network(const torch::nn::Linear& model) {
  return {model.ptr(), [model = torch::nn::Linear(model)](const Batch& batch) mutable {
            return model->forward(batch.input * batch.lengths);
          }};
}

TEST(SecondDevice, TakesTheBatchesOfAUsersOwnLoaderMaskIncluded) {
  const auto fit = [](c10::Device device) {
    torch::manual_seed(5);
    torch::nn::Linear model(4, 1);
    model->to(device);
    const Masked loader;
    demi::TrainerOptions options{.epochs = 2, .loss = demi::train::Loss::mse, .device = device};
    return demi::Trainer(masked_network(model), options).fit(loader, &loader);
  };
  const History expected = fit(c10::kCPU), history = fit(kDevice);
  ASSERT_EQ(history.steps.size(), expected.steps.size());
  EXPECT_NEAR(history.steps.back().loss, expected.steps.back().loss, 1e-4);
  EXPECT_NEAR(history.epochs.back().validation->loss, expected.epochs.back().validation->loss,
              1e-4);
}

TEST(SecondDevice, LengthsStayWhereLibTorchPacksSequences) {
  const at::Tensor rows = at::ones({4, 3}), lengths = at::tensor({3, 2, 1, 1}, at::kLong);
  const Batch moved = demi::data::to_device({rows, rows, lengths}, kDevice);
  EXPECT_EQ(moved.input.device(), kDevice);
  EXPECT_EQ(moved.target.device(), kDevice);
  EXPECT_TRUE(moved.lengths.is_same(lengths));
  EXPECT_EQ(demi::data::to_device({rows, rows, rows > 0}, kDevice).lengths.device(), kDevice);
  EXPECT_FALSE(demi::data::to_device({rows, rows, {}}, kDevice).lengths.defined());
}

TEST(SecondDevice, BatchesThatAreThereAreNotCopied) {
  const at::Tensor here = at::ones({4, 3}).to(kDevice);
  const int64_t before = second_device::arrivals;
  const Batch moved = demi::data::to_device({here, here, {}}, kDevice);
  EXPECT_TRUE(moved.input.is_same(here));
  EXPECT_EQ(second_device::arrivals, before);
}

// One target for all examples, and a mask.
class Expanded : public demi::data::Loader {
 public:
  int64_t examples() const override { return 8; }
  int64_t batches() const override { return 2; }
  Batch batch(int64_t, int64_t position) const override {
    const at::Tensor rows = at::arange(16, at::kFloat).view({4, 4}) + position;
    return {rows, at::full({1}, position, at::kLong).expand({4}), rows > 3};
  }
};

TEST(SecondDevice, BatchesThatAreMadeAheadGoThereAsOthersDo) {
  const auto inner = std::make_shared<Expanded>();
  const demi::data::PrefetchLoader loader(inner, {.depth = 2, .device = kDevice});
  for (int64_t position = 0; position < 2; ++position) {
    const int64_t before = second_device::recorded;
    const Batch seen = loader.batch(0, position);
    const Batch expected = demi::data::to_device(inner->batch(0, position), kDevice);
    EXPECT_EQ(second_device::recorded, before + 3) << "memory of input, target and mask";
    for (const auto part : {&Batch::input, &Batch::target, &Batch::lengths}) {
      EXPECT_EQ((seen.*part).device(), kDevice);
      EXPECT_TRUE((seen.*part).cpu().equal((expected.*part).cpu()));
    }
  }
}

// A run whose batches are recorded holds the memory of its graphs beside that of plain steps. (Its
// finish() reads the device here, and runs plainly.)
TEST(SecondDevice, ABatchSizeCountsTheMemoryOfGraphs) {
  const second_device::Graphs graphs;
  demi::graph::set_machine_graphs(&graphs);
  demi::settings::Config config = demi::settings::find_recipe("mlp").config;
  for (const char* name : {"in", "out"}) demi::settings::set(config, name, "64", name);
  config.clip_norm = 0;
  std::map<int64_t, double> needed[2];
  int64_t sizes[2];
  const auto workload = demi::workload::load_workload(config, kDevice);
  for (const bool recorded : {false, true}) {
    const auto run = parse_run(recorded ? "fp32:cuda-graph=auto" : "fp32");
    sizes[recorded] = demi::workload::find_batch_size(
        demi::settings::resolve(config, run, kDevice), workload,
        {.free_bytes = 100'000'000, .tried = [&](const demi::workload::BatchTrial& trial) {
           needed[recorded][trial.size] = trial.needed_bytes;
         }});
  }
  demi::graph::set_machine_graphs(nullptr);
  EXPECT_LT(sizes[1], sizes[0]);
  for (const int64_t size : {8, 32}) {
    // The fixed batch, and the outputs of three layers.
    const auto least = static_cast<double>(size * 64 * 4 * (2 + 3));
    EXPECT_GE(needed[1].at(size), needed[0].at(size) + least) << size;
  }
}

TEST(SecondDevice, FindsABatchSizeForTextsAndTimesTheirStep) {
  const Folder folder;
  const auto config = small_recipes::of("imdb-lstm", folder.path());
  const auto workload = demi::workload::load_workload(config, kDevice);
  EXPECT_EQ(demi::workload::find_batch_size(
                demi::settings::resolve(config, parse_run("fp32"), kDevice), workload),
            small_recipes::kExamples);
  const auto timed = demi::bench::bench_recipe(
      {.config = config, .runs = {parse_run("bf16")}, .warmup = 2, .steps = 2, .rounds = 1},
      kDevice);
  ASSERT_EQ(timed.runs.size(), 2u);
  for (const auto& run : timed.runs) {
    ASSERT_TRUE(run.host_us);
    EXPECT_GT(*run.host_us, 0);
    EXPECT_LE(*run.host_us, 1e3 * 2 * run.max_ms) << "one of the round's two steps";
    EXPECT_FALSE(run.of_device) << "no profiler sees this device";
  }
  const auto alone = demi::bench::bench_recipe(
      {.config = config, .runs = {parse_run("bf16")}, .warmup = 2, .steps = 1, .rounds = 1},
      kDevice);
  EXPECT_FALSE(alone.runs[1].host_us) << "no second step of a round";
}

}  // namespace
