#include <fmt/format.h>

#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "cli/commands.h"
#include "cli/option_values.h"
#include "cli/output.h"
#include "cli/settings.h"
#include "demi/core/atomic_file.h"
#include "demi/core/error.h"
#include "demi/core/nearest.h"
#include "demi/tensor/device.h"
#include "lab/profiler/profile_report.h"
#include "lab/profiler/profile_run.h"
#include "lab/recipes/compare.h"
#include "lab/recipes/machine.h"
#include "lab/recipes/run_record.h"
#include "lab/report/run_folder.h"
#include "lab/settings/part_of_run.h"
#include "lab/settings/recipe.h"
#include "lab/settings/resolved.h"
#include "lab/shell_word.h"
#include "lab/workload/workload.h"

namespace demi::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kProfiledRecipe = "mlp";
constexpr std::int64_t kMostRecorded = 1000;  // a trace of more is beyond what a browser shows
constexpr std::uint64_t kNeededForTraces = 64U << 20U;

struct ProfileArguments {
  std::string recipe = kProfiledRecipe, precisions, output_dir, run_dir, ranges;
  std::int64_t steps = 5, warmup = 3;
  SettingOptions settings;
  Output output;
};

std::vector<settings::RunSpec> profiled_runs(const ProfileArguments& a, c10::Device device) {
  if (!a.precisions.empty()) return settings::parse_runs(a.precisions);
  return recipes::default_runs(device);
}

std::optional<profiler::Ranges::Kind> ranges_of(const std::string& name) {
  if (name.empty()) return std::nullopt;
  if (name == "nvtx") return profiler::Ranges::Kind::nvtx;
  if (name == "itt") return profiler::Ranges::Kind::itt;
  throw UsageError({.where = "--ranges",
                    .what = "no such kind of ranges",
                    .seen = name,
                    .accepted = "nvtx (Nsight Systems), itt (VTune)",
                    .advice = did_you_mean(name, std::vector<std::string>{"nvtx", "itt"})});
}

std::string profile_again(const ProfileArguments& a) {
  std::string line = fmt::format("demi profile {} --steps {}", lab::shell_word(a.recipe), a.steps);
  if (!a.precisions.empty()) line += " --precision " + lab::shell_word(a.precisions);
  if (!a.ranges.empty()) line += " --ranges " + a.ranges;
  return line + a.settings.typed();
}

// The folder that is named, or a new one among the runs.
fs::path folder_of(const ProfileArguments& a) {
  if (a.output_dir.empty())
    return report::RunFolder::create("profile-" + settings::folder_name(a.recipe),
                                     report::runs_root(a.run_dir), kNeededForTraces)
        .path();
  std::error_code failed;
  fs::create_directories(a.output_dir, failed);
  if (failed)
    throw TrainingError({.where = "--output",
                         .what = "the folder cannot be made",
                         .seen = a.output_dir + ": " + failed.message(),
                         .advice = "name another one"});
  return a.output_dir;
}

void profile(const ProfileArguments& a) {
  profiler::ProfileOptions options{.warmup = a.warmup, .steps = a.steps};
  options.ranges = ranges_of(a.ranges);
  options.config = a.settings.resolve(settings::find_recipe(a.recipe));
  if (options.config.batch_size == 0)
    throw UsageError({.where = "--batch-size",
                      .what = "the batch size must be the same for all precisions",
                      .seen = "auto",
                      .advice = "name one: --batch-size 512"});
  options.device = pick_device(options.config.device);
  const std::vector<settings::RunSpec> runs = profiled_runs(a, options.device);
  settings::backends_of(options.config).set();
  note_slow_precisions(runs, options.device);
  const workload::Workload workload = workload::load_workload(options.config, options.device);
  show_network(workload.about);
  const fs::path folder = folder_of(a);
  profiler::Profile result{.recipe = a.recipe,
                           .config = options.config,
                           .machine = recipes::machine(options.device),
                           .steps = a.steps};
  for (const settings::RunSpec& run : runs) {
    options.trace = folder / ("trace-" + settings::file_name(run.label) + ".json");
    result.runs.push_back(profiler::profile_run(options, run, workload));
  }
  write_atomically(folder / "report.html",
                   report::to_html(profiler::to_page(result, profile_again(a))),
                   report::kOtherRunsFolder);
  const nlohmann::ordered_json json = profiler::json_of(result);
  write_atomically(folder / recipes::kResultFile, Output::text_of(json), report::kOtherRunsFolder);
  a.output.show(profiler::to_tables(result), json);
  std::cerr << "report: " << (folder / "report.html").string() << "\n";
  for (const profiler::RunProfile& run : result.runs)
    if (!run.trace.empty()) std::cerr << "trace: " << run.trace.string() << "\n";
}

}  // namespace

void add_profile(CLI::App& app) {
  auto* command = app.add_subcommand(
      "profile", "Ops and kernels of a training step, the precisions side by side");
  const auto a = std::make_shared<ProfileArguments>();
  command->add_option("RECIPE", a->recipe,
                      "Recipe to profile; `demi train --list` names them [mlp]");
  command->add_option("--precision", a->precisions,
                      "Precisions, by comma, each with a variant after a colon if wanted, as the "
                      "runs of `demi compare` [fp32,bf16 on a CPU, fp32,fp16 on CUDA]");
  command->add_option("--steps", a->steps, "Steps that are recorded, and as many without profiler")
      ->check(whole_number(1, kMostRecorded))
      ->capture_default_str();
  command->add_option("--warmup", a->warmup, "Steps before")
      ->check(whole_number(1, kMostRecorded))
      ->capture_default_str();
  command->add_option("--output", a->output_dir,
                      "Folder of report.html, result.json and the traces [a new run folder]");
  command->add_option("--run-dir", a->run_dir,
                      "Folder in which run folders are made [DEMI_RUNS, or runs]");
  command->add_option("--ranges", a->ranges,
                      "As many steps more with ranges for a profiler of the system's: nvtx "
                      "(Nsight Systems, CUDA only) or itt (VTune)");
  a->output.add_to(*command);
  a->settings.add_to(*command, kProfiledRecipe, settings::beyond_steps());
  command->callback([a] { profile(*a); });
}

}  // namespace demi::cli
