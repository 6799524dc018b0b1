// Every recipe, stopped in the middle of a step's batches and in a test, and resumed: the bits of
// the unbroken run. Recipes with large checkpoints only with DEMI_ALL_RECIPES=1.
#include <gtest/gtest.h>
#include <unistd.h>

#include "lab/recipes/compare.h"
#include "lab/recipes/observer_testing.h"
#include "lab/recipes/run.h"
#include "lab/recipes/same_run_testing.h"
#include "tests/small_recipes.h"

namespace demi::recipes {
namespace {

namespace fs = std::filesystem;

class ResumedRecipe : public ::testing::TestWithParam<std::string> {
 protected:
  ResumedRecipe()
      : folder_(fs::temp_directory_path() / ("demi-resumed-recipe-" + std::to_string(getpid()))) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~ResumedRecipe() override { fs::remove_all(folder_); }

  // Its checkpoints have hundreds of megabytes.
  static bool is_large() {
    const std::string recipe = GetParam();
    return recipe.find("resnet") != recipe.npos || recipe.find("vgg") != recipe.npos;
  }

  // Steps of two batches, and one of the epoch's third.
  Config config() const {
    settings::Config config = small_recipes::of(GetParam(), folder_ / "data");
    config.epochs = 2;
    config.steps = 0;
    config.accumulate = 2;
    config.ema = is_large() ? 0 : 0.5;
    config.keep_last = 1;
    return config;
  }

  // Stopped when it asks for the `stop_at`-th time whether it should: before the first batch, after
  // each, and before each batch of a test. 0: never.
  RunResult run_in(const std::string& name, const workload::Workload& workload, int stop_at) {
    fs::create_directories(folder_ / name);
    testing::Watch watch;
    watch.stops = [stop_at, asked = 0]() mutable { return ++asked == stop_at; };
    JobOptions options{.folder = folder_ / name, .checkpoints = folder_ / name / "kept"};
    options.resume = true;
    options.observer = &watch;
    RunResult result =
        run(settings::resolve(config(), settings::parse_run("bf16")), workload, options);
    steps_before_.insert(steps_before_.end(), watch.resumed.begin(), watch.resumed.end());
    return result;
  }

  fs::path folder_;
  std::vector<std::size_t> steps_before_;
};

TEST_P(ResumedRecipe, EndsWithTheBitsOfTheUnbrokenRun) {
  if (is_large() && !std::getenv("DEMI_ALL_RECIPES"))
    GTEST_SKIP()
        << "its checkpoints are large: DEMI_ALL_RECIPES=1, or the test long.resume_recipes";
  const workload::Workload workload = workload::load_workload(config(), c10::kCPU);
  const RunResult unbroken = run_in("unbroken", workload, 0);
  ASSERT_EQ(unbroken.history.steps.size(), 4u);
  steps_before_.clear();
  std::vector<std::size_t> expected;
  if (is_large()) {  // after the first batch of the second epoch
    EXPECT_TRUE(run_in("resumed", workload, workload.test ? 6 : 5).history.stopped);
    expected = {0, 2};
  } else {
    // After the first batch; then after the third, or in the test that follows it; then after the
    // first of the second epoch.
    EXPECT_TRUE(run_in("resumed", workload, 2).history.stopped);
    EXPECT_TRUE(run_in("resumed", workload, workload.test ? 4 : 3).history.stopped);
    EXPECT_TRUE(run_in("resumed", workload, workload.test ? 3 : 2).history.stopped);
    expected = {0, 0, 2, 2};
  }
  const RunResult resumed = run_in("resumed", workload, 0);
  EXPECT_EQ(steps_before_, expected);
  ASSERT_EQ(resumed.history.steps.size(), 4u);
  EXPECT_EQ(resumed.test_loss, unbroken.test_loss);
  EXPECT_EQ(resumed.test_accuracy, unbroken.test_accuracy);
  EXPECT_EQ(resumed.test_accuracy_fp32_eval, unbroken.test_accuracy_fp32_eval);
  EXPECT_TRUE(same_run::content(folder_ / "resumed" / "model.safetensors") ==
              same_run::content(folder_ / "unbroken" / "model.safetensors"));
  same_run::expect_same_checkpoint(folder_ / "resumed" / "kept", folder_ / "unbroken" / "kept");
}

INSTANTIATE_TEST_SUITE_P(Recipes, ResumedRecipe, ::testing::ValuesIn(small_recipes::names()),
                         [](const auto& recipe) { return small_recipes::plain(recipe.param); });

}  // namespace
}  // namespace demi::recipes
