#include "cli/start.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "cli/output.h"
#include "cli/ranks.h"
#include "demi/checkpoint/checkpoint.h"
#include "demi/core/error.h"
#include "demi/core/json.h"
#include "demi/tensor/device.h"
#include "lab/doctor/variables.h"
#include "lab/recipes/compare.h"
#include "lab/recipes/resume.h"
#include "lab/report/run_folder.h"
#include "lab/settings/devices.h"
#include "lab/settings/recipe.h"
#include "lab/settings/run_spec.h"
#include "lab/shell_word.h"
#include "lab/workload/weights_file.h"

namespace demi::cli {
namespace {

namespace fs = std::filesystem;

// Settings of file, environment, options and a launcher, from the weakest to the strongest.
using Given = std::vector<settings::Assignment>;

// Other programs have a config.json, too.
bool is_run(const fs::path& folder) {
  const nlohmann::json record = json_or_null(json_text(folder / "config.json").value_or(""));
  std::error_code unreadable;
  return record.is_object() ? record.contains("recipe")
                            : fs::exists(folder / "config.json", unreadable);
}

// The recipe of the run folder that a path is in; empty: there is none.
std::string recipe_around(fs::path path) {
  constexpr int kDeepest = 4;  // RUN/checkpoints/fp32/step-00000400
  for (int i = 0; i < kDeepest; ++i, path = path.parent_path())
    if (is_run(path)) return recipes::read_run_record(path).recipe;
  return "";
}

// `from`: what --from says.
std::string named_recipe(const StartWords& words, const SettingOptions& settings,
                         const std::string& from) {
  std::string recipe = words.recipe.empty() ? settings.of_file().recipe : words.recipe;
  if (recipe.empty() && !from.empty()) recipe = recipe_around(fs::absolute(from));
  if (recipe.empty()) recipe = words.default_recipe;
  return recipe;
}

[[noreturn]] void which_recipe(const StartWords& words) {
  throw UsageError({.where = words.command,
                    .what = "which recipe?",
                    .advice = "`demi train --list` names them: demi train fashion-cnn"});
}

// The value of --resume or --from; "" if there is none. A file's value is that of the run which it
// describes.
settings::Assignment asked_for(std::string_view setting, const std::string& accepted,
                               const Given& given) {
  settings::Assignment asked;
  for (const settings::Assignment& a : given)
    if (a.name == setting) asked = a;
  if (!asked.name.empty() && asked.text.empty() && !asked.is_of_file())
    throw UsageError({.where = asked.source,
                      .what = "no run is named, as by a variable of the shell that is not set",
                      .seen = "\"\"",
                      .accepted = accepted,
                      .advice = "leave it out to begin a new run"});
  return asked;
}

settings::Assignment asked_to_resume(const Given& given) {
  return asked_for("resume", "a run folder, a checkpoint, or auto", given);
}

settings::Assignment asked_to_start(const Given& given) {
  return asked_for("from", "a run folder, a checkpoint, or a safetensors file", given);
}

// --resume and --from exclude each other: one resumes a run, the other begins one.
void require_one_of_both(const Given& given) {
  const settings::Assignment resume = asked_to_resume(given), from = asked_to_start(given);
  if (resume.text.empty() || from.text.empty() || from.is_of_file()) return;
  throw UsageError(
      {.where = from.source,
       .what = "a run that goes on has its weights, and --from begins a new one",
       .seen = fmt::format("--from {} --resume {}", from.text, resume.text),
       .advice = resume.text == "auto"
                     ? "leave out --resume; in a script that is started again, let a --config file "
                       "say from"
                     : "leave out --from to go on, or --resume to start at step 0"});
}

// Notes on a file that is easily misunderstood.
void note_file(const StartWords& words, const SettingOptions& settings, const std::string& recipe,
               const Given& given) {
  const std::string of_file = settings.of_file().recipe;
  if (!of_file.empty() && of_file != recipe)
    note(settings.file() + " is of the recipe " + of_file +
         ", whose settings count: its model and data are trained under the name " + recipe);
  const settings::ComparedRuns runs = settings.of_file().runs;
  bool names_precision = false;
  for (const settings::Assignment& a : given)
    names_precision |= a.name == "precision" && !a.is_of_file();
  if (words.command == "train" && runs.is_comparison && !names_precision) {
    std::string labels;
    for (const std::string& label : runs.runs) labels += (labels.empty() ? "" : ",") + label;
    note(settings.file() + " is of a comparison of " + labels +
         ": one run is trained here, and --precision names which");
  }
}

// The command as it was typed, for a shell.
std::string line_of(const StartWords& words, const std::string& recipe,
                    const SettingOptions& settings) {
  return "demi " + words.command + " " + lab::shell_word(recipe) + words.more + settings.typed();
}

settings::Config config_of(const std::string& recipe, const SettingOptions& settings,
                           const Given& given) {
  const bool starts_from_weights = !asked_to_start(given).text.empty();
  settings::Config config =
      SettingOptions::start_of(settings::find_recipe(recipe), given, starts_from_weights);
  settings::set_all(config, given);
  settings::check(config);
  settings.check_effects(config, given);
  return config;
}

Start new_run(const StartWords& words, const SettingOptions& settings, const Given& given) {
  const std::string recipe = named_recipe(words, settings, asked_to_start(given).text);
  if (recipe.empty()) which_recipe(words);
  settings::Config config = config_of(recipe, settings, given);
  settings.note_ignored();
  note_file(words, settings, recipe, given);
  return {.command = words.command,
          .recipe = recipe,
          .config = std::move(config),
          .line = line_of(words, recipe, settings),
          .run_dir = words.run_dir};
}

[[noreturn]] void refuse(const fs::path& folder, const std::string& what, const std::string& seen,
                         const std::string& advice) {
  throw UsageError(
      {.where = "--resume", .what = what + " " + folder.string(), .seen = seen, .advice = advice});
}

// The settings that differ from those that it was begun with, as options.
std::string changed(const settings::Config& begun, const settings::Config& now) {
  std::string text;
  for (const settings::Setting& setting : settings::all_settings())
    if (setting.name != "resume" && setting.get(now) != setting.get(begun))
      text += option_text(setting, setting.get(now));
  return text;
}

// The settings that make it another run differ: it resumes in a folder of its own, and this folder
// stays unchanged.
Start in_a_new_folder(const StartWords& words, const SettingOptions& settings,
                      const fs::path& folder, const recipes::RunRecord& record,
                      const std::string& change, Start start) {
  if (words.command != "train") {
    const std::string first = record.runs.empty() ? "" : record.runs.front();
    refuse(folder, "the runs of a comparison keep their loss scaling:", change,
           "leave it out, or name one run's checkpoint: demi train --resume " +
               lab::shell_word(recipes::checkpoints_of(folder, record, first).string()));
  }
  const auto say = [](const fs::path& damaged, const std::string& wrong) {
    note(damaged.string() + " is damaged and is passed over (" + wrong + ")");
  };
  const auto newest = checkpoint::newest_whole(folder / recipes::kCheckpoints, say);
  if (!newest)
    refuse(folder, "there is no checkpoint yet in", change,
           "begin a new run with it, or resume this one as it was begun");
  start.resume_from = *newest;
  start.line = line_of(words, start.recipe, settings);
  return start;
}

Start resume_run(const StartWords& words, const SettingOptions& settings, const Given& given,
                 const fs::path& folder) {
  recipes::RunRecord record = recipes::read_run_record(folder);
  recipes::require_saved_settings(folder, record);
  if (!recipes::can_resume(folder))
    throw DataError({.where = "--resume",
                     .what = "the run has come to its end and left no checkpoint",
                     .seen = folder.string(),
                     .advice = "begin a new run"});
  if (record.command != words.command)
    refuse(folder, "another command began the run", "demi " + record.command,
           "demi " + record.command + " --resume " + lab::shell_word(folder.string()));
  const std::string recipe = words.recipe.empty() ? settings.of_file().recipe : words.recipe;
  if (!recipe.empty() && recipe != record.recipe)
    refuse(folder, "another recipe is that of the run", recipe,
           "leave it out, or name " + record.recipe);
  Start start{.command = words.command, .recipe = record.recipe, .run_dir = words.run_dir};
  start.config = recipes::resumed_config(record.config, given, folder);
  const std::string change = recipes::change_of_precision(record.config, start.config);
  if (!change.empty())
    return in_a_new_folder(words, settings, folder, record, change, std::move(start));
  start.line = record.line + changed(record.config, start.config);
  start.folder = folder;
  start.record = std::move(record);
  return start;
}

Start resume_checkpoint(const StartWords& words, const SettingOptions& settings, const Given& given,
                        const fs::path& path) {
  const fs::path checkpoint = checkpoint::find(path);
  std::string recipe = words.recipe.empty() ? settings.of_file().recipe : words.recipe;
  if (recipe.empty()) recipe = recipe_around(fs::absolute(checkpoint));
  if (recipe.empty())
    refuse(path, "which recipe? The checkpoint is in no run's folder", checkpoint.string(),
           "name it: demi train RECIPE --resume " + lab::shell_word(path.string()));
  settings::find_recipe(recipe);
  Start start{.command = words.command, .recipe = recipe, .run_dir = words.run_dir};
  start.config =
      recipes::resumed_config(workload::weights_info(checkpoint).config, given, checkpoint);
  start.line = line_of(words, recipe, settings);
  start.resume_from = checkpoint;
  return start;
}

// The runs of a comparison that is begun now; of another command none.
std::vector<std::string> runs_of(const StartWords& words, const Start& begun) {
  if (words.command != "compare" || !words.runs.empty()) return words.runs;
  const std::string& of_recipe = settings::find_recipe(begun.recipe).runs;
  std::vector<std::string> labels;
  for (const settings::RunSpec& run :
       of_recipe.empty()
           ? recipes::default_runs(pick_device(settings::device_of_rank(begun.config, 0)))
           : settings::parse_runs(of_recipe))
    labels.push_back(run.label);
  return labels;
}

// Why an unfinished run is not the one that was asked for; empty: it is.
std::string why_not(const fs::path& folder, const std::vector<std::string>& runs,
                    const Given& given, const settings::Config& asked) {
  try {
    const recipes::RunRecord record = recipes::read_run_record(folder);
    if (!runs.empty() && runs != record.runs)
      return fmt::format("its runs are {}, not {}", fmt::join(record.runs, ","),
                         fmt::join(runs, ","));
    std::string difference = recipes::first_difference(record.config, asked, given);
    if (difference.empty()) recipes::resumed_config(record.config, given, folder);
    return difference;
  } catch (const Error& error) {
    return error.what();
  }
}

// Throws DataError if the system does not let it be seen.
bool is_there(const fs::path& path) {
  std::error_code code;
  if (fs::exists(path, code)) return true;
  if (!code) return false;
  throw DataError({.where = "--resume",
                   .what = "the run cannot be read",
                   .seen = path.string() + ": " + code.message(),
                   .advice = "mend the path or its permissions"});
}

Start find_and_start(const StartWords& words, const SettingOptions& settings) {
  const Given given = with_launched_ranks(settings.given());
  require_one_of_both(given);
  const std::string resume = asked_to_resume(given).text;
  if (resume.empty()) return new_run(words, settings, given);
  if (resume != "auto") {
    if (!is_there(resume))
      throw DataError({.where = "--resume",
                       .what = "no such run folder",
                       .seen = resume,
                       .advice = "look into " + report::runs_root(words.run_dir).string() +
                                 " for the runs there are, or say --resume auto"});
    const bool is_run = is_there(fs::path(resume) / "config.json");
    return is_run ? resume_run(words, settings, given, resume)
                  : resume_checkpoint(words, settings, given, resume);
  }
  Start begun = new_run(words, settings, given);
  const fs::path root = report::runs_root(words.run_dir);
  const std::vector<std::string> runs = runs_of(words, begun);
  std::string passed_over;
  for (const fs::path& folder : recipes::unfinished(words.command, begun.recipe, root)) {
    const std::string difference = why_not(folder, runs, given, begun.config);
    if (difference.empty()) return resume_run(words, settings, given, folder);
    if (passed_over.empty()) passed_over = folder.string() + " is another: " + difference;
  }
  if (!speaks_for_all()) return begun;
  if (passed_over.empty())
    note("no unfinished run of " + words.command + "-" + begun.recipe + " in " + root.string() +
         ": a new one begins");
  else
    note("no unfinished run with these settings in " + root.string() + ": a new one begins (" +
         passed_over + ")");
  return begun;
}

}  // namespace

settings::Config config_with(const Start& start, const SettingOptions& settings,
                             const settings::Assignment& more) {
  Given given = with_launched_ranks(settings.given());
  given.push_back(more);
  settings::Config config = config_of(start.recipe, settings, given);
  config.resume.clear();  // as resolve_start does
  return config;
}

Start resolve_start(const StartWords& words, const SettingOptions& settings) {
  if (!has_launcher())  // which has reported it
    for (const std::string& variable : doctor::unknown_variables()) note(variable);
  Start start = find_and_start(words, settings);
  start.config.resume.clear();  // --config with the run's config.json would resume another run
  return start;
}

}  // namespace demi::cli
