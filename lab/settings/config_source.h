#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "demi/core/export.h"
#include "lab/settings/config.h"

namespace demi::settings {

/// A value for a setting, and where it was found ("lr in file.json", "DEMI_LR").
struct Assignment {
  /// The setting, its value as text, and where it was found.
  std::string name, text, source;
  /// A file has values for all settings, and asks for none of them.
  bool is_of_file() const { return !source.starts_with("--") && !source.starts_with("DEMI_"); }
};

/// Whether the assignment is $DEMI_DATA_DIR, the folder of all data sets, and the config has a
/// folder of pictures of its own, which counts.
DEMI_API bool gives_way_to_own_folder(const Assignment& assignment, const Config& config);

/// Sets the given values in turn, so that later ones count, except one that
/// gives_way_to_own_folder(). Throws UsageError.
DEMI_API void set_all(Config& config, std::span<const Assignment> given);

/// The runs of a comparison by its config.json; empty for another file.
struct ComparedRuns {
  bool is_comparison = false;     // false: the file is of another kind
  std::vector<std::string> runs;  // labels
  int64_t turn_steps = 0;         // steps that the runs took in turn; 0: one run after the other
};

/// The content of a JSON file of settings. A run's own config.json is such a file.
struct ConfigFile {
  std::vector<Assignment> values;  // of settings, in the order of the file
  std::string recipe;              // "": it names none
  ComparedRuns runs;               // of a comparison
};

/// Reads a file once, so that it may be a pipe. Throws UsageError: no such file, not JSON, not an
/// object of plain values, an unknown name, a setting that it says twice, a recipe that is no name,
/// runs that are no list.
DEMI_API ConfigFile read_config_file(const std::filesystem::path& file);

/// The settings that a run wrote down, from the text of its config.json or of its checkpoint, which
/// `file` names in messages. Throws as read_config_file, but DataError for a setting that is not
/// known: another demi may have written it.
DEMI_API std::vector<Assignment> read_config_text(std::string_view text, const std::string& file);

/// The values that the environment sets (DEMI_LR=0.1, ...).
DEMI_API std::vector<Assignment> read_environment();

/// All values as an object of plain values.
DEMI_API nlohmann::ordered_json json_of(const Config& config);

/// The config as text, each value on its own line, which read_config_file reads.
DEMI_API std::string to_json(const Config& config);

/// The environment variable of a setting: DEMI_BATCH_SIZE of batch-size.
DEMI_API std::string environment_variable(std::string_view setting);

}  // namespace demi::settings
