// A network with a loss of its own never holds the logits of a batch whole, whatever trains,
// evaluates or measures it. Truth: the largest block that LibTorch allocates on the CPU.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>

#include "demi/profile/allocation_log.h"
#include "demi/profile/memory.h"
#include "lab/bench/recipe.h"
#include "lab/profiler/profile_run.h"
#include "lab/recipes/compare.h"
#include "lab/recipes/eval.h"
#include "lab/recipes/layers.h"
#include "lab/recipes/run.h"
#include "tests/small_recipes.h"

namespace demi {
namespace {

namespace fs = std::filesystem;

// Of more than the 1 MiB that a piece may have.
constexpr std::int64_t kRows = 128, kContext = 32, kClasses = 256;     // bytes
constexpr std::int64_t kLogitBytes = kRows * kContext * kClasses * 2;  // in 16 bits

class WholeLogits : public ::testing::Test {
 protected:
  WholeLogits()
      : folder_(fs::temp_directory_path() / ("demi-whole-logits-" + std::to_string(getpid()))),
        config_(small_recipes::of("gpt-shakespeare", folder_ / "data")) {
    profile::count_cpu_memory();
    std::string text;
    for (std::size_t i = 0; i < 50'000; ++i) text.push_back("abcd ef\n"[i * i * (i + 3) % 8]);
    small_recipes::write(fs::path(config_.data_dir) / "tinyshakespeare.txt", text);
    config_.tokenizer = "bytes";
    config_.context = kContext;
    config_.batch_size = config_.test_batch_size = kRows;
    config_.model_settings = {{"depth", "1"}, {"heads", "1"}, {"embedding", "8"}};
  }
  ~WholeLogits() override { fs::remove_all(folder_); }

  workload::Workload workload() const { return workload::load_workload(config_, c10::kCPU); }

  void expect_pieces(const char* what, const std::function<void()>& work) {
    const profile::AllocationLog log(c10::kCPU);
    work();
    std::int64_t largest = 0;
    for (const profile::Allocation& block : log.allocations())
      largest = std::max(largest, block.bytes);
    EXPECT_GT(largest, kLogitBytes / 16) << what << ": it has computed something";
    EXPECT_LT(largest, kLogitBytes) << what;
  }

  const fs::path folder_;
  settings::Config config_;
};

TEST_F(WholeLogits, AreNeverMade) {
  const workload::Workload workload = this->workload();
  for (const auto& [block, precision] :
       {std::pair{"gpt2", "fp32"}, {"gpt2", "fp16"}, {"llama", "bf16"}, {"nanochat", "bf16"}}) {
    config_.model_settings["block"] = block;
    expect_pieces(block, [&, &precision = precision] {
      // As `demi train` asks for it.
      recipes::run(settings::resolve(config_, settings::parse_run(precision)), workload,
                   {.per_class = true});
    });
  }
}

TEST_F(WholeLogits, AreNotMadeByWhatMeasuresTheNetwork) {
  const workload::Workload workload = this->workload();
  const settings::Resolved fp32 = settings::resolve(config_, settings::parse_run("fp32")),
                           bf16 = settings::resolve(config_, settings::parse_run("bf16"));
  expect_pieces("compare", [&] {
    recipes::compare({.config = config_, .runs = {fp32, bf16}}, workload);
  });
  expect_pieces("layers", [&] {
    recipes::compare_layers({.config = config_, .runs = {fp32, bf16}, .steps = 1}, workload);
  });
  expect_pieces("bench recipe", [&] {
    bench::bench_recipe({.config = config_, .warmup = 2, .steps = 1, .rounds = 1}, c10::kCPU);
  });
  expect_pieces("profile", [&] {
    profiler::profile_run({.config = config_, .warmup = 1, .steps = 1, .kernel_names = false},
                          settings::parse_run("bf16"), workload);
  });
  config_.what_if = "fp16";
  expect_pieces("what-if", [&] {
    recipes::run(settings::resolve(config_, settings::parse_run("fp32")), workload, {});
  });
}

TEST_F(WholeLogits, AreNotMadeByEval) {
  const recipes::JobOptions options{.folder = folder_};

  recipes::run(settings::resolve(config_, settings::parse_run("bf16")), workload(), options);
  expect_pieces("eval", [&] {
    recipes::evaluate_saved(folder_ / "model.safetensors", {.data_dir = config_.data_dir});
  });
}

}  // namespace
}  // namespace demi
