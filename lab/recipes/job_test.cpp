#include "lab/recipes/job.h"

#include <ATen/Context.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "demi/autocast/op_policy.h"
#include "demi/checkpoint/checkpoint.h"
#include "demi/checkpoint/manifest.h"
#include "demi/checkpoint/safetensors.h"
#include "demi/core/error.h"
#include "demi/core/flush_subnormals.h"
#include "demi/profile/memory.h"
#include "demi/train/names.h"
#include "demi/train/testing.h"
#include "lab/recipes/eval.h"
#include "lab/recipes/observer_testing.h"
#include "lab/recipes/run.h"
#include "lab/recipes/small_mlp_testing.h"
#include "lab/settings/recipe.h"
#include "lab/settings/resolved.h"
#include "lab/workload/weights_file.h"

namespace demi::recipes {
namespace {

namespace fs = std::filesystem;

TEST(Run, KeepsTheModelAndTheStateAndSaysTheirSizes) {
  const settings::Config config = small_mlp();
  const fs::path folder = fs::temp_directory_path() / "demi_run_test";
  fs::create_directories(folder);
  const workload::Workload workload = workload::load_workload(config, c10::kCPU);
  const RunResult result = run(settings::resolve(config, settings::parse_run("bf16")), workload,
                               {.folder = folder, .checkpoints = folder / "checkpoints"});
  EXPECT_EQ(result.history.steps.size(), 8u);
  EXPECT_EQ(result.model_bytes, static_cast<int64_t>(fs::file_size(folder / "model.safetensors")));
  int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(checkpoint::find(folder)))
    bytes += static_cast<int64_t>(entry.file_size());
  EXPECT_EQ(result.checkpoint_bytes, bytes);
  EXPECT_EQ(result.parameters, 3 * (8 * 8 + 8));
  EXPECT_FALSE(result.test_accuracy) << "a regression has none";
  fs::remove_all(folder);
}

TEST(Run, APartThatIsNotThereIsSaidBeforeAnyRunIsTrained) {
  const settings::Config config = small_mlp();
  const workload::Workload workload = workload::load_workload(config, c10::kCPU);
  EXPECT_NO_THROW(check_parts(
      settings::resolve(config, settings::parse_runs("fp32,bf16:fp32-part=layers.2")), workload));
  try {
    check_parts(settings::resolve(config, settings::parse_runs("fp32,bf16:fp32-part=layer.2")),
                workload);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("did you mean layers.2?"));
  }
}

// An index table of the model: it is evaluated in FP32 at the end.
TEST(Run, IntegersOfTheModelStayIntegers) {
  const settings::Config config = small_mlp();
  workload::Workload workload = workload::load_workload(config, c10::kCPU);
  std::vector<train::Network> made;
  workload.make_network = [&made, make = workload.make_network](uint64_t seed) {
    made.push_back(make(seed));
    made.back().module->register_buffer("order", at::tensor({16'777'217}, at::kLong));
    return made.back();
  };
  workload.test = std::make_shared<train::testing::Rows>(at::ones({8, 8}), at::ones({8, 8}), 8);
  for (const char* spec : {"bf16", "bf16-true"})
    run(settings::resolve(config, settings::parse_run(spec)), workload, {});
  ASSERT_FALSE(made.empty());
  for (const train::Network& network : made) {
    const at::Tensor order = network.module->named_buffers()["order"];
    EXPECT_EQ(order.scalar_type(), at::kLong);
    EXPECT_EQ(order.item<int64_t>(), 16'777'217) << "no FP32 has it";
  }
}

// Runs that are trained in parts, as the program's signals and a killed process leave them.
class RunParts : public ::testing::Test {
 protected:
  struct UntilStep : train::Callback, testing::Watch {
    explicit UntilStep(int64_t step) : last(step) {}
    void after_update(const train::StepView& view) override { steps = view.step; }
    bool should_stop() override { return steps >= last; }
    int64_t steps = 0, last;
  };

  RunParts() {
    std::string pattern = (fs::temp_directory_path() / "demi-run-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    config_.epochs = 3;
    config_.checkpoint_every = "0";
    workload_ = workload::load_workload(config_, c10::kCPU);
  }
  ~RunParts() override { fs::remove_all(folder_); }

  // 8 steps an epoch, 24 in all.
  JobOptions until(int64_t step) {
    const auto watch = std::make_shared<UntilStep>(step);
    return {.folder = folder_,
            .checkpoints = folder_ / "kept",
            .observer = watch.get(),
            .callbacks = {watch}};
  }
  JobOptions to_the_end(RunObserver* observer = nullptr) {
    return {.folder = folder_, .checkpoints = folder_ / "kept", .observer = observer};
  }
  RunResult now(const JobOptions& options, const std::string& spec = "fp32") const {
    return run(settings::resolve(config_, settings::parse_run(spec)), workload_, options);
  }

  fs::path folder_;
  settings::Config config_ = small_mlp();
  workload::Workload workload_;
};

TEST_F(RunParts, TheTimePerEpochIsThatOfWholeEpochs) {
  const RunResult whole = now({});
  ASSERT_EQ(whole.history.epochs.size(), 3u);
  double sum = 0;
  for (const train::EpochRecord& epoch : whole.history.epochs) sum += epoch.seconds;
  EXPECT_DOUBLE_EQ(whole.seconds_per_epoch, sum / 3);
  const RunResult second = now(until(12));
  ASSERT_EQ(second.history.epochs.size(), 2u);
  EXPECT_DOUBLE_EQ(second.seconds_per_epoch, second.history.epochs[0].seconds);
  EXPECT_LT(second.seconds_per_epoch, second.seconds) << "half an epoch more";
  config_.steps = 18;  // two epochs and two steps
  const RunResult cut = now({});
  ASSERT_EQ(cut.history.epochs.size(), 3u);
  EXPECT_DOUBLE_EQ(cut.seconds_per_epoch,
                   (cut.history.epochs[0].seconds + cut.history.epochs[1].seconds) / 2);
  config_.steps = 0;
  const RunResult first = now(until(3));
  ASSERT_TRUE(first.history.stopped);
  EXPECT_GT(first.seconds, 0);
  EXPECT_EQ(first.test_loss, std::nullopt);
  EXPECT_FALSE(fs::exists(folder_ / "model.safetensors")) << "a stopped run ships nothing";
  EXPECT_NEAR(first.seconds_per_epoch, first.seconds * 8 / 3, 1e-9) << "three of eight steps";
}

// What was measured before, which no second part could reach, stands in the checkpoint.
TEST_F(RunParts, WhatGoesOnIsMeasuredAsOneRun) {
  const RunResult first = now(until(12));
  checkpoint::Checkpoint state = checkpoint::load(folder_ / "kept");
  auto& measured = state.numbers.at("measured");
  EXPECT_EQ(measured.at("peak_bytes"), static_cast<double>(first.peak_bytes));
  constexpr double kMany = 1e15;
  for (auto& [name, number] : measured) number = kMany;
  measured["queued_seconds"] = kMany;
  checkpoint::save(folder_ / "kept", 12, state);
  JobOptions options = to_the_end();
  options.resume = true;
  const RunResult all = now(options);
  EXPECT_EQ(all.history.steps.size(), 24u);
  EXPECT_EQ(static_cast<double>(all.peak_bytes), kMany);
  EXPECT_EQ(static_cast<double>(all.peak_resident_bytes), kMany);
  EXPECT_GE(static_cast<double>(all.involuntary_switches), kMany);
  const auto last = checkpoint::load(folder_ / "kept").numbers.at("measured");
  for (const char* name : {"wall_seconds", "cpu_seconds", "stolen_seconds", "queued_seconds"})
    EXPECT_GE(last.at(name), kMany) << name;
}

TEST_F(RunParts, ItIsSaidOnceThatARunGoesOn) {
  const auto first = std::make_shared<UntilStep>(12);
  JobOptions options = to_the_end(first.get());
  options.callbacks = {first};
  now(options);
  EXPECT_TRUE(first->resumed.empty()) << "it begins";
  testing::Watch watch;
  options = to_the_end(&watch);
  options.checkpoints = folder_ / "from";
  options.resume_from = checkpoint::find(folder_ / "kept");
  now(options);
  options.resume_from.clear();
  options.checkpoints = folder_ / "nothing";
  options.resume = true;
  now(options);
  options.checkpoints = folder_ / "kept";
  now(options);
  EXPECT_THAT(watch.resumed, ::testing::ElementsAre(12u, 0u, 12u));
}

// Killed before its first checkpoint, or between a checkpoint and the file that names it.
// Labels that are others behind the same number of examples train another model.
TEST_F(RunParts, OtherLabelsAreSaidWhereARunGoesOn) {
  workload_.labels = 7;
  const auto resumed = [&](std::optional<std::uint32_t> labels) {
    workload_.labels = labels;
    testing::Watch watch;
    JobOptions options = to_the_end(&watch);
    options.resume = true;
    now(options);
    return watch.notes;
  };
  now(until(5));
  EXPECT_THAT(resumed(8),
              ::testing::ElementsAre(::testing::HasSubstr("labels of the training data")));
  fs::remove_all(folder_ / "kept");
  workload_.labels = 7;
  now(until(5));
  EXPECT_THAT(resumed(7), ::testing::IsEmpty());
}

TEST_F(RunParts, WhatAKilledProcessLeftIsNoCheckpointOrOne) {
  testing::Watch watch;
  JobOptions options = to_the_end(&watch);
  options.resume = true;
  fs::create_directories(folder_ / "kept" / "step-00000003.123.tmp");
  EXPECT_EQ(now(options).history.steps.size(), 24u);
  EXPECT_THAT(watch.resumed, ::testing::ElementsAre(0u));
  fs::remove_all(folder_ / "kept");
  now(until(12));
  fs::remove(folder_ / "kept" / "last");
  now(options);
  EXPECT_THAT(watch.resumed, ::testing::ElementsAre(0u, 12u));
  options.resume = false;
  EXPECT_EQ(now(options).history.steps.size(), 24u);
  EXPECT_EQ(watch.resumed.size(), 2u) << "it was not asked to go on";
}

// The number of requests rises once, so one checkpoint more is saved.
TEST_F(RunParts, ARequestIsSavedOnce) {
  struct AskedAfterStep5 : UntilStep {
    explicit AskedAfterStep5(int times) : UntilStep(1000), asked(times) {}
    int save_requests() override { return steps < 5 ? 0 : asked; }
    int asked;
  };
  const auto saves = [&](int requests) {
    const auto watch = std::make_shared<AskedAfterStep5>(requests);
    JobOptions options = to_the_end(watch.get());
    options.callbacks = {watch};
    EXPECT_EQ(now(options).history.steps.size(), 24u);
    fs::remove_all(folder_ / "kept");
    return watch->saves;
  };
  const std::size_t without = saves(0);
  EXPECT_EQ(saves(1), without + 1);
  EXPECT_EQ(saves(2), without + 1) << "two at once";
}

// 8, 16 and 24 are the ends of epochs, and 24 that of the run: a checkpoint of each, with its
// epoch.
TEST_F(RunParts, WhatIsDueAtTheEndOfAnEpochIsSavedOnceWithItsFigures) {
  workload_.test = workload_.train;
  for (const char* every : {"8", "4", "5"}) {
    config_.checkpoint_every = every;
    testing::Watch watch;
    EXPECT_EQ(now(to_the_end(&watch)).history.epochs.size(), 3U);
    const std::size_t expected = every == std::string("8") ? 3 : every == std::string("4") ? 6 : 5;
    EXPECT_EQ(watch.saves, expected);
    EXPECT_EQ(checkpoint::read_manifest(checkpoint::find(folder_ / "kept")).step, 24);
    fs::remove_all(folder_ / "kept");
  }
  // Stopped in the test after the first epoch, it is saved as well, from before the test.
  struct Stopping : train::testing::Rows {
    using Rows::Rows;
    data::Batch batch(int64_t epoch, int64_t position) const override {
      if (epoch == 0) asked = true;
      return Rows::batch(epoch, position);
    }
    mutable bool asked = false;
  };
  const auto test =
      std::make_shared<Stopping>(torch::ones({8, 8}), torch::zeros({8, 8}), int64_t{4});
  workload_.test = test;
  config_.checkpoint_every = "8";
  testing::Watch watch;
  watch.stops = [&] { return test->asked; };
  EXPECT_EQ(now(to_the_end(&watch)).history.steps.size(), 8U);
  EXPECT_EQ(checkpoint::read_manifest(checkpoint::find(folder_ / "kept")).step, 8);
}

TEST_F(RunParts, AsManyCheckpointsStayAsTheConfigSays) {
  config_.checkpoint_every = "5";
  const auto kept = [&] {
    now(to_the_end());
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_ / "kept"))
      if (entry.is_directory()) names.insert(entry.path().filename().string());
    fs::remove_all(folder_ / "kept");
    return names;
  };
  config_.keep_last = 2;
  EXPECT_THAT(kept(), ::testing::ElementsAre("step-00000020", "step-00000024"));
  config_.keep_last = 1;
  EXPECT_THAT(kept(), ::testing::ElementsAre("step-00000024"));
}

TEST_F(RunParts, TheBestIsKeptIfAskedAndTested) {
  JobOptions options = to_the_end();
  options.keep_best = true;
  now(options);
  EXPECT_FALSE(fs::exists(folder_ / "kept" / "best")) << "nothing is tested";
  workload_.test = workload_.train;
  options.keep_best = false;
  now(options);
  EXPECT_FALSE(fs::exists(folder_ / "kept" / "best"));
  options.keep_best = true;
  now(options);
  EXPECT_TRUE(fs::exists(folder_ / "kept" / "best"));
}

TEST_F(RunParts, WhatIfIsAnsweredOfBatchesAndWithAFolderInAFile) {
  config_.what_if = "fp16";
  config_.data = "synthetic-linear";
  config_.input_scale = 1e6;  // beyond fp16
  workload_ = workload::load_workload(config_, c10::kCPU);
  const RunResult without = now({});
  ASSERT_TRUE(without.what_if);
  EXPECT_FALSE(without.what_if->cures.empty());
  EXPECT_TRUE(without.what_if_policy.empty());
  JobOptions options = to_the_end();
  EXPECT_EQ(now(options).what_if_policy, folder_ / "op-policy-fp16.txt");
  options.resume = true;
  EXPECT_FALSE(now(options).what_if) << "the run was over, and no batch was looked at";
}

// As if another run had thrown: what was measured stands in the checkpoint as well.
TEST_F(RunParts, ItsStateIsKeptAfterTheStepsThatItTook) {
  Job one(settings::resolve(config_, settings::parse_run("fp32")), workload_, to_the_end(), 0);
  one.save_last();
  EXPECT_FALSE(fs::exists(folder_ / "kept" / "last")) << "no step";
  EXPECT_TRUE(one.advance(5));
  one.save_last();
  const checkpoint::Checkpoint kept = checkpoint::load(folder_ / "kept");
  EXPECT_EQ(kept.text.at("demi.step"), "5");
  EXPECT_TRUE(kept.numbers.contains("measured"));
}

// What it would write without a folder would stand in the present one.
TEST_F(RunParts, WithoutAFolderNothingIsKept) {
  const fs::path here = fs::current_path();
  fs::current_path(folder_);
  Job one(settings::resolve(config_, settings::parse_run("fp32")), workload_, {}, 0);
  EXPECT_TRUE(one.advance(5));
  one.save_last();
  fs::current_path(here);
  EXPECT_TRUE(fs::is_empty(folder_));
}

// The checkpoint was removed, which the file names: nothing is begun anew in its place.
TEST_F(RunParts, ACheckpointThatIsNamedAndNotThereIsSaid) {
  now(until(12));
  fs::remove_all(folder_ / "kept" / "step-00000012");
  ASSERT_TRUE(fs::exists(folder_ / "kept" / "last"));
  JobOptions options = to_the_end();
  options.resume = true;
  EXPECT_THROW(now(options), DataError);
}

// 64 MB for a moment: in a step, then between the network's making and the first step.
TEST_F(RunParts, ThePeakOfResidentMemoryIsThatOfItsTraining) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own memory would be counted";
#endif
  constexpr int64_t kMuch = 64 << 20;
  struct Allocating : train::Callback {
    // Not by malloc, since AddressSanitizer keeps what is freed.
    static void allocate() {
      void* much = ::mmap(nullptr, kMuch, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
      ASSERT_NE(much, MAP_FAILED);
      ::munmap(much, kMuch);
    }
    void after_update(const train::StepView& view) override {
      if (view.step == 1) allocate();
    }
  };
  if (!profile::reset_peak_resident_memory()) GTEST_SKIP() << "the peak cannot be reset here";
  const auto peak = [&](const JobOptions& options, bool between) {
    Job one(settings::resolve(config_, settings::parse_run("fp32")), workload_, options, 0);
    if (between) Allocating::allocate();
    EXPECT_FALSE(one.advance(1000));
    return one.finish().peak_resident_bytes;
  };
  JobOptions options;
  options.callbacks = {std::make_shared<Allocating>()};
  const int64_t without = peak({}, false);
  EXPECT_GT(without, 0);
  EXPECT_GE(peak(options, false), without + kMuch / 2);
  EXPECT_LT(peak({}, true), without + kMuch / 2);
}

// Three classes, and outputs that are the inputs: the target is the greatest, the second and the
// least of them in turn.
class Classes : public RunParts {
 protected:
  Classes() {
    config_.epochs = 1;
    config_.batch_size = 3;
    config_.optimizer = "sgd";
    config_.lr = 0;
    config_.loss = "cross-entropy";
    workload_.classes = {"a", "b", "c"};
    workload_.train = workload_.test = read_;
    workload_.make_network = [](uint64_t) {
      torch::nn::Sequential model(torch::nn::Linear(torch::nn::LinearOptions(3, 3).bias(false)));
      const torch::NoGradGuard no_grad;
      model[0]->as<torch::nn::Linear>()->weight.copy_(torch::eye(3));
      return train::network(model);
    };
  }

  struct Counted : train::testing::Rows {
    using Rows::Rows;
    data::Batch batch(int64_t epoch, int64_t position) const override {
      ++count;
      return Rows::batch(epoch, position);
    }
    mutable int count = 0;
  };
  const std::shared_ptr<Counted> read_ = std::make_shared<Counted>(
      torch::tensor({3.F, 2.F, 1.F}).repeat({6, 1}), torch::arange(6) % 3, int64_t{3});
};

TEST_F(Classes, TopKIsThatOfTheEpochsAndOfWhatIsShipped) {
  config_.top_k = 2;
  const RunResult two = now({.folder = folder_});
  EXPECT_EQ(two.top_k, 2);
  ASSERT_TRUE(two.test_accuracy && two.test_top_k_accuracy);
  EXPECT_DOUBLE_EQ(*two.test_accuracy, 1.0 / 3);
  EXPECT_DOUBLE_EQ(*two.test_top_k_accuracy, 2.0 / 3);
  const auto& metrics = two.history.epochs.at(0).validation.value().metrics;
  ASSERT_EQ(metrics.size(), 1U);
  EXPECT_DOUBLE_EQ(metrics[0].second, 2.0 / 3);
  config_.top_k = 0;
  const RunResult none = now({.folder = folder_});
  EXPECT_EQ(none.top_k, 0);
  EXPECT_FALSE(none.test_top_k_accuracy);
  EXPECT_TRUE(none.history.epochs.at(0).validation.value().metrics.empty());
}

// Two batches each are read in training, in the epoch's test, in the test of the shipped weights,
// and in the one in FP32.
TEST_F(Classes, AnEvaluationThatWasStoppedSaysNothing) {
  const auto stopped_after = [&](int batches) {
    read_->count = 0;
    testing::Watch watch;
    watch.stops = [&] { return read_->count >= batches; };
    return now({.folder = folder_, .observer = &watch});
  };
  const RunResult in_exact = stopped_after(7);
  EXPECT_TRUE(in_exact.history.stopped);
  EXPECT_TRUE(in_exact.test_accuracy);
  EXPECT_FALSE(in_exact.test_accuracy_fp32_eval);
  const RunResult in_shipped = stopped_after(5);
  EXPECT_TRUE(in_shipped.history.stopped);
  EXPECT_FALSE(in_shipped.test_accuracy);
  EXPECT_FALSE(in_shipped.test_accuracy_fp32_eval);
  EXPECT_EQ(read_->count, 5) << "nor is another one begun";
  const RunResult whole = stopped_after(9);
  EXPECT_FALSE(whole.history.stopped);
  EXPECT_DOUBLE_EQ(whole.test_accuracy_fp32_eval.value(), 1.0 / 3);
}

// What 16-bit weights are trained as, or its average, and not their rounding.
TEST_F(Classes, TheTestInFp32SeesFp32) {
  config_.lr = 0.01;
  config_.checkpoint_every = "1epoch";
  at::Tensor seen;  // by the last forward pass of all
  workload_.make_network = [&seen, make = workload_.make_network](uint64_t seed) {
    train::Network made = make(seed);
    made.forward = [&seen, forward = made.forward, module = made.module](const data::Batch& batch) {
      seen = module->named_parameters().front().value().detach().clone();
      return forward(batch);
    };
    return made;
  };
  for (const char* spec : {"bf16-true", "bf16-true:split", "bf16-true:split24", "fp16-true:split"})
    for (const double ema : {0.0, 0.5}) {
      SCOPED_TRACE(c10::str(spec, ema));
      config_.ema = ema;
      now(to_the_end(), spec);
      ASSERT_EQ(seen.scalar_type(), at::kFloat);
      const at::Tensor rounded = seen.to(at::kBFloat16).to(at::kFloat);
      EXPECT_FALSE(at::equal(seen, rounded));
      EXPECT_TRUE(at::equal(seen, workload::read_weights(folder_ / "kept").at("0.weight")));
      fs::remove_all(folder_ / "kept");
    }
}

TEST_F(RunParts, TheAverageIsWhatIsShipped) {
  for (const double ema : {0.0, 0.5}) {
    config_.ema = ema;
    now(to_the_end());
    const auto shipped = checkpoint::load_safetensors(folder_ / "model.safetensors").tensors;
    const auto trained = checkpoint::load(folder_ / "kept").model;
    bool are_equal = true;
    for (const auto& [name, tensor] : trained)
      are_equal = are_equal && tensor.equal(shipped.at(name));
    EXPECT_EQ(are_equal, ema == 0) << ema;
    fs::remove_all(folder_ / "kept");
  }
}

// 24 steps, of which every third is looked at.
TEST_F(RunParts, WhatTheMonitorSeesIsToldAndKept) {
  config_.monitor = 3;
  testing::Watch watch;
  EXPECT_EQ(now(to_the_end(&watch)).health.size(), 8u);
  EXPECT_EQ(watch.health, 8u);
}

TEST_F(RunParts, StoppedBeforeItsFirstStepThereIsNothingToKeep) {
  testing::Watch watch;
  watch.stops = [] { return true; };
  Job none(settings::resolve(config_, settings::parse_run("fp32")), workload_, to_the_end(&watch),
           0);
  none.save_last();
  EXPECT_FALSE(fs::exists(folder_ / "kept"));
  EXPECT_FALSE(none.advance(1));
  EXPECT_TRUE(none.finish().history.stopped);
}

// The search for a batch size that fits begins after the run has given its memory back. Of data
// that are not synthetic it is at most all examples.
TEST_F(RunParts, WhereMemoryRunsOutItSaysWhichBatchFits) {
  struct Exhausting : train::testing::Rows {
    using Rows::Rows;
    data::Batch batch(int64_t epoch, int64_t position) const override {
      if (position == 2) throw std::bad_alloc();
      return Rows::batch(epoch, position);
    }
  };
  config_.data = "cifar10";
  workload_.train =
      std::make_shared<Exhausting>(torch::rand({40, 8}), torch::rand({40, 8}), int64_t{8});
  std::weak_ptr<torch::nn::Module> held;
  bool is_freed = true;
  workload_.make_network = [&, make = workload_.make_network](uint64_t seed) {
    is_freed = is_freed && held.expired();
    train::Network network = make(seed);
    held = network.module;
    return network;
  };
  try {
    now(to_the_end());
    FAIL();
  } catch (const TrainingError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("memory ran out in the run fp32"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("--batch-size 40 fits in 80 %"));
  }
  EXPECT_TRUE(is_freed);
}

// Settings of the processor and of LibTorch hold in the test as in training.
TEST_F(RunParts, TheTestHasTheSettingsOfTheRun) {
  struct Watched : train::testing::Rows {
    using Rows::Rows;
    data::Batch batch(int64_t epoch, int64_t position) const override {
      (flushes_subnormals() ? flushed : kept) += 1;
      (at::globalContext().deterministicAlgorithms() ? exact : free) += 1;
      return Rows::batch(epoch, position);
    }
    mutable int flushed = 0, kept = 0, exact = 0, free = 0;
  };
  for (const bool on : {true, false}) {
    const auto watched =
        std::make_shared<Watched>(torch::ones({8, 8}), torch::zeros({8, 8}), int64_t{8});
    workload_.test = watched;
    config_.flush_subnormals = on;
    config_.deterministic = on;
    now(to_the_end());
    EXPECT_EQ(on ? watched->kept : watched->flushed, 0) << on;
    EXPECT_EQ(on ? watched->free : watched->exact, 0) << on;
    EXPECT_GE(watched->kept + watched->flushed, 3 + 2) << "epochs, and the weights twice";
  }
}

// A saved model is tested with the settings of the run that it is from.
TEST_F(RunParts, ASavedModelIsTestedWithTheSettingsOfItsRun) {
  std::ofstream(folder_ / "t.csv") << "label,text\n0,bad film\n1,good film\n";
  settings::Config config = settings::find_recipe("imdb-lstm").config;
  for (const auto& [name, value] : std::vector<std::pair<const char*, std::string>>{
           {"data", "csv"},
           {"train-file", (folder_ / "t.csv").string()},
           {"test-file", (folder_ / "t.csv").string()},
           {"hidden", "4"},
           {"embedding", "4"},
           {"epochs", "1"}})
    settings::set(config, name, value, name);
  static std::atomic<bool> is_exact, is_free;
  const auto callback = at::addGlobalCallback(at::RecordFunctionCallback(
      [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
        (at::globalContext().deterministicAlgorithms() ? is_exact : is_free) = true;
        return nullptr;
      }));
  for (const bool on : {true, false}) {
    config.deterministic = on;
    run(settings::resolve(config, settings::parse_run("fp32")),
        workload::load_workload(config, c10::kCPU), {.folder = folder_});
    is_exact = is_free = false;
    evaluate_saved(folder_ / "model.safetensors", {.device = "cpu"});
    EXPECT_EQ(is_exact, on) << "in the test of " << on;
  }
  at::removeCallback(callback);
}

// The file is what is tested: its weights are those of the network as trained, rounded.
TEST_F(RunParts, TheTestIsOfTheFileThatIsShipped) {
  const at::Tensor x = torch::rand({8, 8}), y = torch::rand({8, 8});
  workload_.test = std::make_shared<train::testing::Rows>(x, y, int64_t{8});
  const RunResult result = now(to_the_end(), "bf16-true");
  train::Network shipped = workload_.make_network(77);
  workload::load_shipped_weights(*shipped.module, parse_precision("bf16-true"),
                                 folder_ / "model.safetensors");
  const torch::NoGradGuard no_grad;
  const at::Tensor output = shipped.forward({x.to(torch::kBFloat16), y, {}});
  const double loss = (output.to(torch::kDouble) - y).square().mean().item<double>();
  EXPECT_NEAR(result.test_loss.value(), loss, 1e-2 * loss);
}

TEST(Run, APartOfAPolicyFileThatIsNotThereIsSaidBeforeAnyRunIsTrained) {
  settings::Config config = small_mlp();
  const workload::Workload workload = workload::load_workload(config, c10::kCPU);
  const fs::path policy = fs::temp_directory_path() / "demi-run-policy.txt";
  OpPolicy().keep_part_in_fp32("layer.2").to_file(policy);
  config.op_policy = policy;
  EXPECT_THROW(check_parts(settings::resolve(config, settings::parse_runs("bf16")), workload),
               UsageError);
  fs::remove(policy);
}

}  // namespace
}  // namespace demi::recipes
