#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "demi/core/export.h"
#include "lab/settings/config.h"

namespace demi::recipes {

/// The record of a run in its folder's config.json.
struct RunRecord {
  std::string command;            // "train" or "compare"
  std::string line;               // as typed: "demi train mlp --lr 0.1"
  std::string recipe;             // its name
  std::vector<std::string> runs;  // their labels: "fp32", "fp16:scale=128"
  int64_t turn_steps = 0;         // of a comparison: as CompareOptions::turn_steps
  settings::Config config;        // what was resolved
};

/// The text of config.json, which read_config_file takes, too.
DEMI_API std::string to_json(const RunRecord& record);

/// Throws DataError if the folder is no run's, or its config.json is missing, damaged, may not be
/// read, or has an entry that this demi does not know.
DEMI_API RunRecord read_run_record(const std::filesystem::path& folder);

/// A run leaves its result there once it has come to its end.
inline constexpr std::string_view kResultFile = "result.json";

/// The folder of a run's checkpoints in its run folder.
inline constexpr std::string_view kCheckpoints = "checkpoints";
/// The file of a run's metrics in its run folder.
inline constexpr const char* kMetricsFile = "metrics.jsonl";

/// Whether the run can be resumed. false for a run that ended without checkpoints, as runs of demi
/// once did. A run that was killed before its first checkpoint resumes at its beginning.
DEMI_API bool can_resume(const std::filesystem::path& folder);

/// The folder of one run's checkpoints; in a comparison each run has its own.
DEMI_API std::filesystem::path checkpoints_of(const std::filesystem::path& run_folder,
                                              const RunRecord& record, std::string_view label);

/// The folders of checkpoints in a run's folder that hold one: its own, or one for each of its
/// runs.
DEMI_API std::vector<std::filesystem::path> checkpoint_folders(
    const std::filesystem::path& run_folder);

/// The run folders of that command and recipe below `root` whose runs have not come to their end,
/// the newest first. A folder without a config.json holds no run that has begun.
DEMI_API std::vector<std::filesystem::path> unfinished(std::string_view command,
                                                       std::string_view recipe,
                                                       const std::filesystem::path& root);

}  // namespace demi::recipes
