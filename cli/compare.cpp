#include "lab/recipes/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <utility>

#include "cli/commands.h"
#include "cli/option_values.h"
#include "cli/output.h"
#include "cli/ranks.h"
#include "cli/session.h"
#include "cli/settings.h"
#include "demi/core/error.h"
#include "demi/tensor/device.h"
#include "lab/recipes/what_if.h"
#include "lab/results/compare_report.h"
#include "lab/results/layers_report.h"
#include "lab/results/published.h"
#include "lab/results/sweep.h"
#include "lab/settings/devices.h"
#include "lab/settings/recipe.h"
#include "lab/settings/resolved.h"
#include "lab/settings/schedules.h"
#include "lab/shell_word.h"

namespace demi::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kComparedRecipe = "fashion-cnn";
constexpr int64_t kMostSteps = 1'000'000'000;
constexpr const char* kLayers = "--layers{0}";            // likewise
constexpr const char* kInterleave = "--interleave{200}";  // CLI11: the value of a bare flag

struct CompareArguments {
  std::string recipe, runs, run_dir, sweep;
  SettingOptions settings;
  std::string layers;  // the number of steps of --layers; empty: it was not given
  int64_t turn_steps = 0;
  bool published = false;
  Output output;
};

void add_options(CLI::App& command, CompareArguments& a) {
  command.add_option("RECIPE", a.recipe,
                     "Recipe to train; `demi train --list` names them [fashion-cnn]");
  command.add_option(
      "--runs", a.runs,
      "Runs, by comma: fp32, tf32, bf16, fp16, bf16-true, fp16-true, fp64, fp8, fp8:rowwise, "
      "fp8:blocks, mxfp8, mxfp8:wgrad-bf16, nvfp4, each with a variant "
      "after a colon if wanted: fp16:no-scaler (scaler, scale=128, statistics, no-skip, "
      "split, split24, stochastic, cuda-graph=on, no-autocast, fp32-part=NAME, op-policy=FILE) "
      "[those of the recipe; else fp32,bf16 on a CPU, fp32,fp16 on CUDA]");
  command.add_option("--sweep", a.sweep,
                     "Compare once for each value of a setting: batch-size=128,256,512,513");
  command.add_flag("--published", a.published,
                   "Published figures of mixed precision training, with their sources: those of "
                   "RECIPE, with this comparison next to them; alone all, and nothing is trained");
  command
      .add_flag(kInterleave, a.turn_steps,
                "The runs take turns of 200 steps (--interleave=N: of N), so that another program "
                "on the machine meets all of them; same weights, losses and metrics")
      // CLI11 2.2 and newer would check, and show, 0 for a number's flag that is not given.
      ->force_callback(false)
      ->default_str("")
      ->type_name("N")
      ->check(whole_number(1, kMostSteps));
  command
      .add_flag(
          kLayers, a.layers,
          "In place of training the runs: one batch in FP32 and in each of them with the same "
          "weights, layer by layer, forward and backward; --layers=N: after N steps in FP32")
      ->type_name("N")
      ->check(whole_number(0, kMostSteps));
  command.add_option("--run-dir", a.run_dir,
                     "Folder in which run folders are made [DEMI_RUNS, or runs]");
  a.output.add_to(command);
  a.settings.add_to(command, kComparedRecipe, {"precision", "loss-scale", "keep-best"});
}

// The command's own options, as typed.
std::string own_options(const CompareArguments& a) {
  std::string line;
  if (!a.runs.empty()) line += " --runs " + lab::shell_word(a.runs);
  if (a.turn_steps > 0) line += fmt::format(" --interleave={}", a.turn_steps);
  if (!a.layers.empty()) line += " --layers=" + a.layers;
  return line;
}

// The words of the AMP recipe.
std::string totals(const recipes::Comparison& c) {
  std::string text;
  for (const recipes::RunResult& run : c.runs)
    text += fmt::format(
        "{}\nTotal execution time = {:.3f} sec\nMax memory used by tensors = {} bytes\n",
        run.spec.label, run.seconds, run.peak_bytes + run.data_bytes);
  return text;
}

// Published figures, with those of this comparison next to them where they can be compared.
report::Table published_table(const recipes::Comparison& result) {
  return results::published_beside(result).value_or(results::published_of(result.recipe).table);
}

void show(const recipes::Comparison& result, const CompareArguments& a) {
  if (!a.output.is_json() && settings::find_recipe(result.recipe).prints_totals)
    Output::print_lines(totals(result));
  std::vector<report::Table> tables{results::to_table(result)};
  if (a.published) tables.push_back(published_table(result));
  for (report::Table& table : recipes::what_if_tables(result)) tables.push_back(std::move(table));
  a.output.show(tables, results::json_of(result));
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ",") + word;
  return text;
}

// The runs that are named, as an option or in a comparison's file.
std::vector<settings::RunSpec> named_runs(const CompareArguments& a) {
  if (!a.runs.empty()) return settings::parse_runs(a.runs);
  const settings::ComparedRuns of_file = a.settings.of_file().runs;
  return of_file.is_comparison && !of_file.runs.empty() ? settings::parse_runs(joined(of_file.runs))
                                                        : std::vector<settings::RunSpec>();
}

std::vector<std::string> labels_of(const std::vector<settings::RunSpec>& runs) {
  std::vector<std::string> labels;
  for (const settings::RunSpec& run : runs) labels.push_back(run.label);
  return labels;
}

// The runs that are named, or the recipe's, or those of the resumed comparison, which must be the
// same.
std::vector<settings::RunSpec> runs_of(const CompareArguments& a, const Start& start) {
  if (!start.record) {
    const std::vector<settings::RunSpec> named = named_runs(a);
    const std::string& of_recipe = settings::find_recipe(start.recipe).runs;
    return named.empty() && !of_recipe.empty() ? settings::parse_runs(of_recipe) : named;
  }
  const std::string begun = joined(start.record->runs);
  std::vector<settings::RunSpec> runs = settings::parse_runs(begun);
  if (a.runs.empty()) return runs;
  if (labels_of(settings::parse_runs(a.runs)) != labels_of(runs))
    throw UsageError({.where = "--runs",
                      .what = "other runs than those of " + start.folder.string(),
                      .seen = a.runs,
                      .accepted = "it was begun with " + begun,
                      .advice = "leave it out, or begin a new comparison without --resume"});
  return runs;
}

bool is_found_by_the_shell(const fs::path& program) {
  const char* const folders = std::getenv("PATH");
  std::istringstream path(folders ? folders : "");
  std::error_code none;
  for (std::string folder; std::getline(path, folder, ':');)
    if (const fs::path found = fs::path(folder) / program.filename(); fs::exists(found, none))
      return fs::equivalent(found, program, none);
  return false;
}

// What to type to start this program.
std::string program_to_type() {
  const fs::path whole = fs::read_symlink("/proc/self/exe");
  if (is_found_by_the_shell(whole)) return whole.filename();
  const fs::path relative = whole.lexically_proximate(fs::current_path());
  return relative.native().size() < whole.native().size() ? relative : whole;
}

// Prints the next commands to try after `demi compare`, or ./demo, without a recipe.
void say_what_is_next(const fs::path& folder) {
  const std::string program = lab::shell_word(program_to_type());
  note(
      fmt::format("to look at the report: xdg-open {}, or any browser; to try next: {} doctor, {} "
                  "train --list",
                  lab::shell_word((folder / "report.html").string()), program, program));
}

recipes::Comparison compare_one(const CompareArguments& a, Start start) {
  const std::vector<settings::RunSpec> runs = runs_of(a, start);
  const int64_t begun_with =
      start.record ? start.record->turn_steps : a.settings.of_file().runs.turn_steps;
  Session session(std::move(start));
  recipes::Comparison result =
      session.compare(runs, /*alone=*/false, a.turn_steps > 0 ? a.turn_steps : begun_with);
  if (a.sweep.empty()) show(result, a);
  session.finish(result);
  const bool names_no_recipe = a.recipe.empty() && a.settings.of_file().recipe.empty();
  if (names_no_recipe && !a.output.is_json() && !session.folder().empty())
    say_what_is_next(session.folder());
  return result;
}

// A run's folder, or one of its checkpoints.
bool resumes(const Start& start) { return !start.folder.empty() || !start.resume_from.empty(); }

// Epochs are those that a schedule is made for, and of running texts eval-every says how long one
// is.
bool is_read_by_steps(std::string_view setting, const settings::Config& config, int64_t steps) {
  if (setting == "eval-every") return steps > 0;
  return setting == "epochs" && steps > 0 && settings::find_schedule(config.schedule).ends;
}

// Throws UsageError for an option about what is watched and kept of runs, and when they end.
// `steps`: those that are trained in FP32 before the layers are compared.
void refuse_options_of_runs(const SettingOptions& settings, const settings::Config& config,
                            int64_t steps) {
  constexpr std::string_view kOfRuns[] = {
      "monitor",    "detect-anomaly", "what-if",   "best-by",        "keep-last",
      "keep-every", "stop-after",     "top-k",     "early-stopping", "checkpoint-every",
      "ema",        "epochs",         "eval-every"};
  for (const settings::Assignment& one : settings.typed_ones()) {
    const settings::Setting* setting = settings::find_setting(one.name);
    const bool is_off = setting && setting->get(config) == setting->get(settings::Config());
    if (std::ranges::count(kOfRuns, one.name) > 0 && !is_off &&
        !is_read_by_steps(one.name, config, steps))
      throw UsageError({.where = one.source,
                        .what = "the setting does nothing in this run: --layers trains none of the "
                                "runs",
                        .seen = one.text,
                        .advice = "leave it out"});
  }
}

void compare_layers(const CompareArguments& a, const Start& start) {
  const int64_t steps = std::stoll(a.layers);
  refuse_options_of_runs(a.settings, start.config, steps);
  if (resumes(start) || !a.sweep.empty() || a.published || a.turn_steps > 0 ||
      start.config.ranks > 1)
    throw UsageError(
        {.where = "--layers",
         .what = "no run is trained that could be resumed, be swept, take turns or have ranks",
         .advice = "leave out --resume, --sweep, --published, --interleave and --ranks; --from RUN "
                   "compares the layers of a run's weights"});
  std::vector<settings::RunSpec> runs = runs_of(a, start);
  Session session(start);
  if (runs.empty()) runs = recipes::default_runs(session.device());
  const results::LayerReport report = session.compare_layers(std::move(runs), steps);
  a.output.show(results::to_tables(report), results::json_of(report));
  session.finish(report);
}

void show_published(const Output& output) {
  std::vector<report::Table> tables;
  for (const results::Published& one : results::published()) tables.push_back(one.table);
  output.show(tables, results::json_of(results::published()));
}

// The settings of a comparison with that value, refused as its runs would be.
settings::Config with_value(const CompareArguments& a, const Start& start,
                            const settings::Assignment& value) {
  const settings::Config config = config_with(start, a.settings, value);
  const c10::Device device = pick_device(settings::device_of_rank(config, 0));
  std::vector<settings::RunSpec> runs = runs_of(a, start);
  if (runs.empty()) runs = recipes::default_runs(device);
  settings::resolve(config, runs, device);
  return config;
}

void compare_each(const CompareArguments& a, const Start& start) {
  if (resumes(start))
    throw UsageError(
        {.where = "--sweep",
         .what = "a sweep makes a comparison for each value, and only one can be resumed",
         .seen = a.sweep,
         .advice = "leave out --sweep, or --resume"});
  const results::Sweep sweep = results::parse_sweep(
      a.sweep, [&](const settings::Assignment& value) { return with_value(a, start, value); });
  std::vector<recipes::Comparison> results;
  const auto show_results = [&] {
    std::vector<report::Table> tables{results::to_table(sweep, results)};
    if (a.published) tables.push_back(results::published_of(start.recipe).table);
    a.output.show(tables, results::json_of(sweep, results));
  };
  for (const settings::Config& config : sweep.configs) {
    Start one = start;
    one.config = config;
    for (const settings::Setting& setting : settings::all_settings())
      if (setting.name == sweep.setting) one.line += option_text(setting, setting.get(one.config));
    try {
      results.push_back(compare_one(a, std::move(one)));
    } catch (...) {                          // an Exit, too: a signal, or the time limit
      if (!results.empty()) show_results();  // of the values before it
      throw;
    }
  }
  show_results();
  for (const recipes::Comparison& result : results) require_success("compare", result);
}

// --published and nothing that a comparison would need.
bool asks_for_figures_alone(const CompareArguments& a) {
  return a.published && a.recipe.empty() && own_options(a).empty() && a.sweep.empty() &&
         a.run_dir.empty() && a.settings.file().empty() && a.settings.typed_ones().empty();
}

void compare_all(const CompareArguments& a) {
  if (asks_for_figures_alone(a)) return show_published(a.output);
  Start start = resolve_start({.command = "compare",
                               .recipe = a.recipe,
                               .default_recipe = kComparedRecipe,
                               .run_dir = a.run_dir,
                               .runs = labels_of(named_runs(a)),
                               .more = own_options(a)},
                              a.settings);
  if (!a.layers.empty()) return compare_layers(a, start);
  if (run_as_ranks(start.command, start.config)) return;
  if (a.published) results::published_of(start.recipe);  // refused before anything is trained
  if (!a.sweep.empty()) return compare_each(a, start);
  require_success("compare", compare_one(a, std::move(start)));
}

}  // namespace

void add_compare(CLI::App& app) {
  auto* command = app.add_subcommand(
      "compare", "Train the same model in FP32 and in mixed precision, side by side");
  const auto arguments = std::make_shared<CompareArguments>();
  add_options(*command, *arguments);
  command->callback([arguments] { compare_all(*arguments); });
}

}  // namespace demi::cli
