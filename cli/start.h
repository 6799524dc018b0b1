#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cli/settings.h"
#include "lab/recipes/run_record.h"
#include "lab/settings/config.h"

namespace demi::cli {

/// The run that a command trains: a new one, or one that it resumes (--resume).
struct Start {
  std::string command, recipe;
  settings::Config config;
  std::string line;                          // to be typed again
  std::filesystem::path run_dir;             // of --run-dir; may be empty
  std::filesystem::path folder;              // of the run to resume; empty: a new run
  std::optional<recipes::RunRecord> record;  // likewise
  std::filesystem::path resume_from;         // the checkpoint that a new run resumes; mostly empty
};

/// The words of a command line other than its settings.
struct StartWords {
  std::string command;         // "train"
  std::string recipe;          // empty: not named
  std::string default_recipe;  // empty: one has to be named, or be found
  std::string run_dir;
  std::vector<std::string> runs;  // labels that were named
  std::string more;  // options of the command itself, for the line: " --runs fp32,bf16"
};

/// The settings of such a new run if `more` is given, too, after all others. Throws UsageError.
settings::Config config_with(const Start& start, const SettingOptions& settings,
                             const settings::Assignment& more);

/// Resolves recipe and settings, and finds the run to resume, whose settings come from its folder.
/// Throws UsageError for a setting that would change its training, for a
/// recipe or command that is not its own, and if no recipe is named; DataError if there is no such
/// run.
Start resolve_start(const StartWords& words, const SettingOptions& settings);

}  // namespace demi::cli
