#include "lab/recipes/recipe_what_if.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "lab/recipes/run.h"
#include "lab/recipes/what_if.h"
#include "lab/results/compare_report.h"
#include "lab/settings/resolved.h"

namespace demi::recipes {
namespace {

using monitor::HarmCause;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

settings::Config small_mlp() {
  settings::Config c;
  c.model = "mlp";
  c.data = "synthetic-linear";
  c.in = 32;
  c.out = 1;
  c.batches = 40;
  c.batch_size = 16;
  c.optimizer = "sgd";
  c.lr = 1e-3;
  c.loss = "mse";
  return c;
}

TEST(RecipeWhatIfOptions, AreThoseOfTheRunInTheRecipe) {
  settings::Config c = small_mlp();
  c.what_if = "fp8:rowwise";
  c.seed = 3;
  c.epochs = 4;
  c.fp32_part = "a,b";
  auto options = recipe_what_if_options(settings::resolve(c), 40);
  EXPECT_EQ(options.recipe, "fp8:rowwise");
  EXPECT_EQ(options.seed, 3u);
  EXPECT_EQ(options.every, 8) << "twenty of 160 steps";
  EXPECT_THAT(options.policy.fp32_parts(), ElementsAre("a", "b"));
  c.steps = 100;
  EXPECT_EQ(recipe_what_if_options(settings::resolve(c), 40).every, 5);
  c.steps = 7;
  EXPECT_EQ(recipe_what_if_options(settings::resolve(c), 40).every, 1);
  c.steps = 0;
  c.accumulate = 2;
  EXPECT_EQ(recipe_what_if_options(settings::resolve(c), 40).every, 4) << "of 80 steps";
}

TEST(RecipeWhatIfOptions, TryTwentyBatchesAtMost) {
  settings::Config c = small_mlp();
  c.what_if = "mxfp8";
  c.epochs = 1;
  for (int64_t steps = 1; steps <= 200; ++steps) {
    const int64_t every = recipe_what_if_options(settings::resolve(c), steps).every;
    int64_t tried = 0;
    for (int64_t step = 1; step <= steps; ++step) tried += step % every == 0;
    EXPECT_LE(tried, 20) << steps;
    EXPECT_GE(tried, std::min<int64_t>(steps, 10)) << steps;
  }
}

// Features up to some 95000 times as large as the others would be no harm to blocks; here the ReLUs
// of an MLP flip, which harms every recipe.
TEST(RecipeWhatIfRun, WritesAPolicyWithWhichTheRecipeTrains) {
  const auto folder = std::filesystem::temp_directory_path() /
                      ("demi-recipe-what-if-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  settings::Config config = small_mlp();
  config.what_if = "fp8:rowwise";
  const workload::Workload workload = workload::load_workload(config, c10::kCPU);
  JobOptions options;
  options.folder = folder;
  const RunResult run =
      recipes::run(settings::resolve(config, settings::parse_run("fp32")), workload, options);
  ASSERT_TRUE(run.recipe_what_if);
  EXPECT_FALSE(run.what_if);
  EXPECT_EQ(run.recipe_what_if->batches, 20);
  EXPECT_GT(run.recipe_what_if->harmed(), 0);
  EXPECT_LT(run.recipe_what_if->seconds, run.seconds);
  if (needs_policy(*run.recipe_what_if)) {
    EXPECT_EQ(run.what_if_policy, folder / "op-policy-fp8-rowwise.txt");
    config.what_if.clear();
    config.op_policy = run.what_if_policy;
    const RunResult low = recipes::run(
        settings::resolve(config, settings::parse_run("fp8:rowwise")), workload, options);
    EXPECT_FALSE(low.history.failed);
  } else {
    EXPECT_TRUE(run.what_if_policy.empty());
  }
  std::filesystem::remove_all(folder);
}

monitor::LayerInRecipe harmed_layer() {
  monitor::LayerInRecipe layer{.layer = "fc",
                               .quantized = true,
                               .error = 0.25,
                               .greatest_error = 0.5,
                               .policy_error = 0.05,
                               .harmed = true,
                               .cause = HarmCause::underflow,
                               .from = "fc",
                               .product = quantization::Product::weight_gradient};
  layer.products[0] = {.error = 0.04, .cosine = 0.999, .operands = {.elements = 100}};
  layer.products[2] = {.error = 0.2,
                       .cosine = 0.98,
                       .operands = {.elements = 200, .saturated = 2, .underflowed = 50}};
  return layer;
}

Comparison asked_of_recipe() {
  Comparison c{.recipe = "mlp"};
  c.config.what_if = "mxfp8";
  c.runs.emplace_back();
  c.runs[0].spec = settings::parse_run("fp32");
  c.runs[0].seconds = 8;
  c.runs[0].what_if_policy = "runs/x/op-policy-mxfp8.txt";
  c.runs[0].recipe_what_if = monitor::RecipeWhatIfResult{
      .recipe = "mxfp8",
      .batches = 20,
      .first_step = 5,
      .last_step = 100,
      .seconds = 1.5,
      .layers = {{.layer = "in", .quantized = true, .error = 0.05, .policy_error = 0.04},
                 harmed_layer(),
                 {.layer = "head", .error = 0.02, .policy_error = 0.01}},
      .policy = OpPolicy().set_part("*", "mxfp8"),
      .left_out = {"fc"},
      .policy_batches = 19};
  return c;
}

TEST(RecipeWhatIfTable, NamesTheWorstLayerFirstAndWhatToDo) {
  const auto tables = what_if_tables(asked_of_recipe());
  ASSERT_EQ(tables.size(), 1u);
  EXPECT_EQ(tables[0].title, "fp32: what if it were mxfp8");
  ASSERT_EQ(tables[0].rows.size(), 3u);
  EXPECT_THAT(tables[0].rows[0],
              ElementsAre("fc", "0.25", "0.05", "0.04 (0.9990)", "0 (1.0000)", "0.2 (0.9800)",
                          "25.00 %", "1.00 %", "underflow of its weight gradient", "bf16"));
  EXPECT_THAT(tables[0].rows[1], ElementsAre("in", "0.05", "0.04", "0 (1.0000)", "0 (1.0000)",
                                             "0 (1.0000)", "0", "0", "", "mxfp8"));
  EXPECT_THAT(tables[0].rows[2],
              ElementsAre("head", "0.02", "0.01", "", "", "", "0", "0", "", "bf16"));
  EXPECT_THAT(tables[0].notes,
              ElementsAre("1 of 3 layers is harmed: the relative error of their weights' gradient, "
                          "against FP32, is not below 0.1.",
                          "Policy file: runs/x/op-policy-mxfp8.txt",
                          "It leaves 1 of 2 layers in bf16. Tried on 19 batches, the greatest "
                          "error is 0.05.",
                          "Of 20 batches, steps 5 to 100; it took 1.5 s of the run's 8.0 s.",
                          HasSubstr("|recipe - exact| / |exact|")));
}

TEST(RecipeWhatIfTable, SaysWhereNoPolicyHelps) {
  Comparison c = asked_of_recipe();
  auto& result = *c.runs[0].recipe_what_if;
  result.none_fits = true;
  EXPECT_THAT(what_if_tables(c)[0].notes[1],
              "No layer can have mxfp8: with any of them in it, one is harmed. Train in bf16.");
  EXPECT_THAT(lines_with_policy(c, "demi train mlp --what-if mxfp8"), IsEmpty());
  result.none_fits = false;
  result.left_out.clear();
  result.layers[1].cause = HarmCause::lower_precision;
  EXPECT_THAT(what_if_tables(c)[0].notes[1],
              "bf16 alone harms 1 of them as much: no policy for mxfp8 helps.");
  result.layers[1].harmed = false;
  result.layers[1].cause = HarmCause::none;
  result.against_region = true;
  EXPECT_THAT(what_if_tables(c)[0].notes[0],
              "No layer is harmed: mxfp8 can have the whole network.");
  EXPECT_THAT(what_if_tables(c)[0].notes[1], HasSubstr("compared with those in bf16"));
  result.batches = 0;
  result.diverged = 4;
  result.refused = "[x] no";
  EXPECT_THAT(what_if_tables(c)[0].notes[0], "The network does not run in mxfp8: [x] no");
  EXPECT_THAT(what_if_tables(c)[0].notes[1], HasSubstr("not finite itself in step 4"));
}

TEST(RecipeWhatIfTable, HasTheTwentyWorst) {
  Comparison c = asked_of_recipe();
  auto& layers = c.runs[0].recipe_what_if->layers;
  layers.insert(layers.end(), 30, layers.front());
  const auto table = what_if_tables(c)[0];
  EXPECT_EQ(table.rows.size(), 20u);
  EXPECT_THAT(table.notes[4], "13 more layers: result.json and --json name them.");
}

TEST(RecipeWhatIfReport, LineJsonAndMetricsHoldIt) {
  const Comparison c = asked_of_recipe();
  EXPECT_THAT(lines_with_policy(c, "demi train mlp --in 8 --what-if mxfp8"),
              ElementsAre("demi train mlp --in 8 --precision mxfp8 --op-policy "
                          "runs/x/op-policy-mxfp8.txt"));
  const auto section = what_if_section(c, "demi train mlp --what-if mxfp8");
  ASSERT_TRUE(section);
  EXPECT_EQ(section->title, "What if it were mxfp8");
  const auto json = results::json_of(c)["runs"][0]["what_if"];
  EXPECT_EQ(json["recipe"], "mxfp8");
  EXPECT_EQ(json["harmed"], 1);
  EXPECT_EQ(json["left_out"], nlohmann::ordered_json({"fc"}));
  EXPECT_EQ(json["seconds"], 1.5);
  EXPECT_EQ(json["op_policy"], "runs/x/op-policy-mxfp8.txt");
  ASSERT_EQ(json["layers"].size(), 3u);
  EXPECT_EQ(json["layers"][1]["cause"], "underflow");
  EXPECT_EQ(json["layers"][1]["weight_gradient"]["underflowed"], 50);
  EXPECT_FALSE(json["layers"][2].contains("output")) << "it is not quantized";
  const auto lines = recipe_what_if_lines("fp32", *c.runs[0].recipe_what_if);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(*report::find_metric<std::string>(lines[1], "what_if"), "mxfp8");
  EXPECT_EQ(*report::find_metric<int64_t>(lines[1], "weight_gradient_underflowed"), 50);
  EXPECT_TRUE(*report::find_metric<bool>(lines[1], "left_out"));
  EXPECT_FALSE(*report::find_metric<bool>(lines[0], "left_out"));
}

}  // namespace
}  // namespace demi::recipes
