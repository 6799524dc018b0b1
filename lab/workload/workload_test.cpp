#include "lab/workload/workload.h"

#include <ATen/ops/linalg_solve.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <torch/types.h>

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "demi/core/error.h"
#include "demi/profile/memory.h"
#include "lab/recipes/small_mlp_testing.h"
#include "lab/settings/recipe.h"

namespace demi::workload {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Workload, ModelDataAndLossMustFit) {
  settings::Config config = settings::find_recipe("mlp").config;
  config.model = "resnet18";
  EXPECT_THROW(load_workload(config, c10::kCPU), UsageError);
  config.model = "resnet81";
  EXPECT_THROW(load_workload(config, c10::kCPU), UsageError);
  config = recipes::small_mlp();
  config.loss = "cross-entropy";
  EXPECT_THROW(load_workload(config, c10::kCPU), UsageError);
}

// The numbers in the issue of the workloads.
TEST(Workload, RecipesHaveThePublishedNumbersOfParameters) {
  const auto parameters = [](const char* recipe, const DataShape& shape) {
    int64_t count = 0;
    const train::Network network =
        make_network(settings::find_recipe(recipe).config, shape, 0, c10::kCPU);
    for (const auto& p : network.module->parameters()) count += p.numel();
    return count;
  };
  const DataShape cifar{.channels = 3, .size = 32, .classes = 10};
  EXPECT_EQ(parameters("cifar10-cnn", cifar), 60362);
  EXPECT_EQ(parameters("cifar10-resnet18", cifar), 11173962);
  EXPECT_EQ(parameters("cifar10-resnet50", cifar), 23520842);
  EXPECT_EQ(parameters("imdb-lstm", {.classes = 2, .vocabulary = 100683}), 10435149);
}

// The same loss and gradients, for less memory between forward and backward.
TEST(Workload, RecomputesWhatIsAskedFor) {
  profile::count_cpu_memory();
  for (const std::string recipe : {"gpt-shakespeare", "cifar10-resnet18"}) {
    const bool is_gpt = recipe == "gpt-shakespeare";
    settings::Config config = settings::find_recipe(recipe).config;
    config.model_settings = {{"depth", "2"}, {"embedding", "16"}, {"heads", "4"}};
    if (is_gpt) config.model_settings["dropout"] = "0.2";
    const DataShape shape{.channels = 3, .size = 8, .classes = 10, .vocabulary = 11};
    data::Batch batch;
    batch.input = is_gpt ? at::arange(4 * 64).remainder(11).view({4, 64})
                         : at::sin(at::arange(2 * 3 * 64, at::kFloat)).view({2, 3, 8, 8});
    struct Trained {
      std::vector<at::Tensor> tensors;
      int64_t held = 0;
    };
    const auto train = [&](const char* how) {
      settings::set(config, "recompute", how, "--recompute");
      const train::Network network = make_network(config, shape, 0, c10::kCPU);
      network.module->train();
      torch::manual_seed(3);
      const auto used = [] { return profile::memory_use(c10::kCPU).current_bytes; };
      const int64_t before = used();
      const auto loss = network.forward(batch).square().mean();
      Trained trained{.tensors = {loss.detach()}, .held = used() - before};
      loss.backward();
      for (const auto& p : network.module->parameters()) trained.tensors.push_back(p.grad());
      for (const auto& buffer : network.module->buffers()) trained.tensors.push_back(buffer);
      return trained;
    };
    const Trained plain = train("none"), blocks = train("blocks"), products = train("products");
    for (const Trained* other : {&blocks, &products})
      for (std::size_t i = 0; i < plain.tensors.size(); ++i)
        EXPECT_TRUE(other->tensors[i].equal(plain.tensors[i])) << recipe << i;
    EXPECT_LT(double(blocks.held), 0.6 * double(plain.held)) << recipe;
    EXPECT_LT(blocks.held, products.held) << recipe;
    EXPECT_LT(products.held, plain.held) << recipe;
  }
}

// Reversed labels have another checksum; the texts behind them none.
TEST(Workload, LabelsHaveAChecksum) {
  const auto labels_of = [](const std::string& rows) {
    std::string pattern = (std::filesystem::temp_directory_path() / "demi-labels-XXXXXX").string();
    const std::filesystem::path folder = mkdtemp(pattern.data());
    std::ofstream(folder / "t.csv") << "label,text\n" << rows;
    settings::Config config = settings::find_recipe("imdb-lstm").config;
    settings::set(config, "data", "csv", "");
    settings::set(config, "train-file", (folder / "t.csv").string(), "");
    settings::set(config, "test-file", (folder / "t.csv").string(), "");
    const auto labels = load_workload(config, c10::kCPU).labels;
    std::filesystem::remove_all(folder);
    return labels;
  };
  const auto labels = labels_of("0,bad\n1,good\n1,fine\n");
  ASSERT_TRUE(labels);
  EXPECT_EQ(labels_of("0,poor\n1,well\n1,nice\n"), labels);
  EXPECT_NE(labels_of("1,bad\n0,good\n0,fine\n"), labels);
  EXPECT_FALSE(load_workload(settings::find_recipe("loss-scaling").config, c10::kCPU).labels);
}

// A limit whose examples are all of one class, since the rows alternate. Truth: the rows.
TEST(Workload, ClassesThatALimitLeavesOutAreNamed) {
  std::string pattern = (std::filesystem::temp_directory_path() / "demi-limit-XXXXXX").string();
  const std::filesystem::path folder = mkdtemp(pattern.data());
  const auto write = [&](const char* name, const std::vector<std::string>& turns, int rows) {
    std::ofstream out(folder / name);
    out << "label,text\n";
    for (int i = 0; i < rows; ++i) out << turns[i % turns.size()] << ",text\n";
  };
  write("train.csv", {"a", "b"}, 60);
  write("test.csv", {"a", "b"}, 61);
  const auto note = [&](std::initializer_list<std::pair<const char*, const char*>> limits) {
    settings::Config config = settings::find_recipe("imdb-lstm").config;
    settings::set(config, "data", "csv", "");
    settings::set(config, "train-file", (folder / "train.csv").string(), "");
    settings::set(config, "test-file", (folder / "test.csv").string(), "");
    settings::set(config, "batch-size", "5", "");
    for (const auto& [name, value] : limits) settings::set(config, name, value, "");
    return load_workload(config, c10::kCPU).note;
  };
  EXPECT_EQ(note({}), "");
  EXPECT_THAT(note({{"limit", "30"}, {"test-limit", "31"}}),  // every second row
              AllOf(HasSubstr("the 30 training examples"), HasSubstr("none of b"),
                    HasSubstr("shuffle"), Not(HasSubstr("test"))));
  EXPECT_EQ(note({{"limit", "60"}, {"test-limit", "31"}}), "");
  EXPECT_EQ(note({{"limit", "25"}}), "");
  EXPECT_THAT(note({{"overfit-batches", "2"}}), HasSubstr("the 10 training examples"));
  EXPECT_EQ(note({{"overfit-batches", "5"}}), "");
  write("test.csv", {"b", "a"}, 60);
  EXPECT_EQ(note({{"test-limit", "20"}, {"limit", "25"}}), "");
  EXPECT_THAT(note({{"test-limit", "30"}, {"limit", "30"}}),
              AllOf(HasSubstr("30 training examples"), HasSubstr("none of b"),
                    HasSubstr("30 test examples"), HasSubstr("none of a")));
  // Of ten classes in turn. A random draw of four would leave out as many.
  write("train.csv", {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}, 60);
  write("test.csv", {"0"}, 1);
  EXPECT_THAT(note({{"loss", "cross-entropy"}, {"limit", "30"}}),
              HasSubstr("none of 1, 3, 5, 7, 9"));
  EXPECT_EQ(note({{"loss", "cross-entropy"}, {"limit", "4"}}), "");
  std::filesystem::remove_all(folder);
}

TEST(Workload, SyntheticDataIsTheSameForEveryRun) {
  const settings::Config config = recipes::small_mlp();
  const Workload a = load_workload(config, c10::kCPU), b = load_workload(config, c10::kCPU);
  EXPECT_TRUE(a.train->batch(0, 3).input.equal(b.train->batch(0, 3).input));
  EXPECT_EQ(a.train->examples(), 64);
  EXPECT_EQ(a.test, nullptr);
}

// y = x W / sqrt(in): of as many rows as features W can be had back, and the others follow it.
TEST(Workload, ALinearTargetIsAFunctionOfTheRows) {
  settings::Config config = recipes::small_mlp();
  config.data = "synthetic-linear";
  config.out = 3;
  const Workload workload = load_workload(config, c10::kCPU);
  const data::Batch first = workload.train->batch(0, 0), other = workload.train->batch(0, 5);
  const at::Tensor weights =
      at::linalg_solve(first.input.to(c10::kDouble), first.target.to(c10::kDouble));
  EXPECT_EQ(first.input.sizes(), (std::vector<int64_t>{8, 8}));
  EXPECT_TRUE(at::allclose(other.input.to(c10::kDouble).matmul(weights),
                           other.target.to(c10::kDouble), 1e-3, 1e-3));
  config.in = 4096;
  const at::Tensor target = load_workload(config, c10::kCPU).train->batch(0, 0).target;
  EXPECT_NEAR(target.square().mean().item<double>(), 1, 0.5) << "24 squares of variance 1";
}

}  // namespace
}  // namespace demi::workload
