// A GPT that makes its activations again (--recompute), in runs of several ranks and under a
// monitor: the plain run is the truth, bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "demi/checkpoint/safetensors.h"
#include "demi/core/crc32c.h"
#include "demi/distributed/ranks_testing.h"
#include "lab/recipes/run.h"
#include "lab/results/health.h"
#include "lab/settings/recipe.h"

namespace demi::recipes {
namespace {

namespace fs = std::filesystem;

using demi::testing::on_ranks;
using distributed::ProcessGroup;
using ::testing::Each;
using ::testing::IsEmpty;

class RecomputedRun : public ::testing::Test {
 protected:
  RecomputedRun() {
    std::string pattern = (fs::temp_directory_path() / "demi-recompute-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    config_.data = "text";
    config_.data_dir.clear();
    config_.train_file = folder_ / "text";
    config_.model_settings = {
        {"depth", "2"}, {"heads", "2"}, {"embedding", "16"}, {"bias", "false"}};
    config_.context = 8;
    config_.batch_size = 2;
    config_.test_batch_size = 2;
    config_.steps = 3;
    config_.eval_every = 3;
    config_.epochs = 1;
    config_.warmup_steps = 0;
    config_.checkpoint_every = "0";
    std::ofstream text(config_.train_file);
    for (int i = 0; i < 40; ++i) text << "to be, or not to be: that is the question\n";
  }
  ~RecomputedRun() override { fs::remove_all(folder_); }

  settings::Resolved resolved(const std::string& how, const std::string& spec) const {
    settings::Config config = config_;
    config.recompute = how;
    return settings::resolve(config, settings::parse_run(spec));
  }

  /// Checksums of the weights in the end, by name.
  std::string weights() const {
    std::string text;
    for (const auto& [name, tensor] :
         checkpoint::load_safetensors(folder_ / "model.safetensors").tensors)
      text += name + " " + std::to_string(crc32c(tensor.const_data_ptr(), tensor.nbytes())) + "\n";
    return text;
  }

  /// Its first network is made here: in the threads of ranks one would seed LibTorch's generator
  /// while the other draws initial weights.
  static workload::Workload part_of(const settings::Resolved& run, int64_t rank) {
    workload::Workload part = workload::read_data(run, {rank, 2})(run.config.batch_size);
    auto first = std::make_shared<std::optional<train::Network>>(
        part.make_network(static_cast<uint64_t>(run.config.seed)));
    part.make_network = [first, make = part.make_network](uint64_t seed) {
      if (!*first) return make(seed);
      train::Network network = **first;
      first->reset();
      return network;
    };
    return part;
  }

  /// Losses by step and the weights, of two ranks that are threads of this process.
  std::string on_two_ranks(const std::string& how, const std::string& spec) {
    const settings::Resolved run_of = resolved(how, spec);
    std::vector<RunResult> results(2);
    const std::vector<workload::Workload> parts{part_of(run_of, 0), part_of(run_of, 1)};
    const auto errors = on_ranks(2, [&](ProcessGroup& group) {
      const workload::Workload& part = parts[static_cast<std::size_t>(group.rank())];
      JobOptions options{.checkpoints = folder_ / (how + spec)};
      if (group.rank() == 0) options.folder = folder_;
      options.group = {&group, [](ProcessGroup*) {}};
      results[static_cast<std::size_t>(group.rank())] = run(run_of, part, options);
    });
    EXPECT_THAT(errors, Each(IsEmpty())) << how;
    std::string text;
    for (const train::StepMetrics& step : results[0].history.steps)
      text += std::to_string(step.loss) + " ";
    EXPECT_EQ(results[0].history.steps.size(), 3U);
    return text + weights();
  }

  fs::path folder_;
  settings::Config config_ = settings::find_recipe("gpt-shakespeare").config;
};

TEST_F(RecomputedRun, OfTwoRanksHasTheBitsOfThePlainOne) {
  config_.ranks = 2;
  for (const std::string spec : {"fp32", "bf16"}) {
    const std::string plain = on_two_ranks("none", spec);
    for (const std::string how : {"blocks", "products"})
      EXPECT_EQ(on_two_ranks(how, spec), plain) << how << " in " << spec;
  }
}

// What runs a second time is counted once: each layer's outputs and gradients are those of the
// plain run, and so are the bits of what was trained.
TEST_F(RecomputedRun, IsMonitoredAsThePlainOne) {
  config_.monitor = 1;
  config_.model_settings["dropout"] = "0.2";
  for (const std::string spec : {"fp32", "fp16"}) {
    const auto seen = [&](const std::string& how) {
      const settings::Resolved run_of = resolved(how, spec);
      const JobOptions options{.folder = folder_, .checkpoints = folder_ / (how + spec)};
      const RunResult result =
          run(run_of, workload::read_data(run_of)(config_.batch_size), options);
      EXPECT_EQ(result.health.size(), 3U) << how;
      std::string lines;
      for (const monitor::StepHealth& step : result.health)
        for (const report::MetricFields& line : results::health_lines("run", step))
          lines += report::metrics_line(line) + "\n";
      return std::pair(std::move(lines), weights());
    };
    const auto plain = seen("none");
    EXPECT_GT(plain.first.size(), 100U);
    for (const char* how : {"blocks", "products"}) {
      const auto again = seen(how);
      EXPECT_EQ(again.second, plain.second) << how << " in " << spec;
      EXPECT_EQ(again.first, plain.first) << how << " in " << spec;
    }
  }
}

}  // namespace
}  // namespace demi::recipes
