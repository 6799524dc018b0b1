#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/bench.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/settings.h"
#include "cli/status_line.h"
#include "demi/tensor/device.h"
#include "lab/bench/recipe.h"
#include "lab/recipes/compare.h"
#include "lab/report/format.h"
#include "lab/results/machine_json.h"
#include "lab/settings/part_of_run.h"
#include "lab/settings/recipe.h"
#include "lab/settings/resolved.h"
#include "lab/shell_word.h"

namespace demi::cli {
namespace {

constexpr const char* kTimedRecipe = "mlp";

struct RecipeArguments {
  std::string recipe = kTimedRecipe, runs;
  bench::RecipeBenchOptions bench;
  SettingOptions settings;
  Output output;
};

std::string recipe_again(const RecipeArguments& a) {
  std::string line = "demi bench recipe " + lab::shell_word(a.recipe);
  if (!a.runs.empty()) line += " --runs " + lab::shell_word(a.runs);
  line += fmt::format(" --warmup {} --steps {} --rounds {}", a.bench.warmup, a.bench.steps,
                      a.bench.rounds);
  return line + a.settings.typed();
}

nlohmann::ordered_json recipe_json(const RecipeArguments& a,
                                   const bench::RecipeBenchResult& result) {
  const bench::RecipeTiming& mixed = result.runs[1];
  nlohmann::ordered_json json{{"recipe", a.recipe},
                              {"fp32_ms", result.runs[0].ms},
                              {"mixed_ms", mixed.ms},
                              {"speedup", mixed.speedup},
                              {"mixed", mixed.precision},
                              {"batch_size", result.batch_size},
                              {"parameters", result.parameters}};
  json["runs"] = nlohmann::ordered_json::array();
  for (const bench::RecipeTiming& run : result.runs) json["runs"].push_back(timing_json(run));
  if (!result.missing.empty()) json["missing"] = result.missing;
  json["warmup"] = a.bench.warmup;
  json["steps"] = a.bench.steps;
  json["rounds"] = a.bench.rounds;
  json["machine"] = results::json_of(result.machine);
  return json;
}

report::Table recipe_table(const RecipeArguments& a, const bench::RecipeBenchResult& result) {
  report::Table table{.title =
                          fmt::format("training step of {}, batch size {}, {} parameters", a.recipe,
                                      result.batch_size, report::format_count(result.parameters))};
  table.columns = {{.name = "run", .align = report::Align::kLeft},
                   {.name = "median", .unit = "ms a step"},
                   {.name = "least", .unit = "ms"},
                   {.name = "most", .unit = "ms"},
                   {.name = "skipped"},
                   {.name = "speedup"}};
  for (const bench::RecipeTiming& run : result.runs)
    table.rows.push_back({run.precision, report::format_fixed(run.ms, 2),
                          report::format_fixed(run.min_ms, 2), report::format_fixed(run.max_ms, 2),
                          report::format_count(run.skipped_steps),
                          report::format_factor(run.speedup)});
  table.notes = {
      fmt::format("{} rounds of {} steps, the runs in turn, after {} steps each whose losses were "
                  "checked against FP32's.",
                  a.bench.rounds, a.bench.steps, a.bench.warmup),
      where_of(result.machine)};
  add_device_columns(result, table);
  return table;
}

void bench_recipe(RecipeArguments& a) {
  a.bench.config = a.settings.resolve(settings::find_recipe(a.recipe));
  if (!a.runs.empty()) a.bench.runs = settings::parse_runs(a.runs);
  const c10::Device device = pick_device(a.bench.config.device);
  settings::backends_of(a.bench.config).set();
  note_slow_precisions(a.bench.runs, device);
  a.bench.before = [](const workload::Workload& workload) { show_network(workload.about); };
  a.bench.on_part = PartProgress();
  const bench::RecipeBenchResult result = bench::bench_recipe(a.bench, device);
  show_measurement(a.output, recipe_table(a, result), recipe_json(a, result), recipe_again(a));
}

}  // namespace

void add_bench_recipe(CLI::App& bench) {
  auto* command =
      bench.add_subcommand("recipe", "The training step of a recipe, FP32 and mixed in turn");
  const auto a = std::make_shared<RecipeArguments>();
  command->add_option("RECIPE", a->recipe, "Recipe to time; `demi train --list` names them [mlp]");
  command->add_option("--runs", a->runs,
                      "Runs to compare with fp32, by comma [bf16 on a CPU, fp16 on CUDA]");
  add_round_options(*command, a->bench.warmup, a->bench.steps, a->bench.rounds);
  a->output.add_to(*command);
  a->settings.add_to(*command, kTimedRecipe, settings::beyond_steps());
  command->callback([a] { bench_recipe(*a); });
}

}  // namespace demi::cli
