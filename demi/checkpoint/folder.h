#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "demi/checkpoint/retention.h"
#include "demi/core/descriptor.h"
#include "demi/core/export.h"

namespace demi::checkpoint {

/// Names of one checkpoint's files.
inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr const char* kStateFile = "state.safetensors";
inline constexpr const char* kManifestFile = "manifest.json";

/// "step-00000400", and "step-00000400-2" for the second one of that step.
DEMI_API std::string checkpoint_name(int64_t step, int64_t copy);

/// Step and copy of such a name; nullopt for any other text.
struct StepName {
  int64_t step, copy;
  auto operator<=>(const StepName&) const = default;  // NOLINT(modernize-use-nullptr)
};
DEMI_API std::optional<StepName> parse_checkpoint_name(std::string_view name);

/// Whether the path is a file of tensors: `last` and `best` are none.
bool is_single_file(const std::filesystem::path& path);

/// The entries of a folder, in any order. On failure `error` is set and the result incomplete.
std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder,
                                              std::error_code& error);

/// Names of the checkpoints in a folder, by step and copy; errors as entries_of.
std::vector<std::string> checkpoints_in(const std::filesystem::path& folder,
                                        std::error_code& error);

/// The text of FOLDER/last and FOLDER/best: a name a line, and the checksum of these lines in the
/// last line. The first name counts; `last` continues with those saved before it, the newest first.
DEMI_API std::string names_to_text(const std::vector<std::string>& names);

/// The names of such a file; none if there is no such file. Throws DataError for a damaged one.
DEMI_API std::vector<std::string> read_names(const std::filesystem::path& file);

/// The names of the checkpoints that stay after `saved` was saved, in the order of saving, newest
/// first. `before`: the names in `last`; `standing`: the run's checkpoints in the folder, by step.
DEMI_API std::vector<std::string> kept_names(const std::string& saved,
                                             const std::vector<std::string>& before,
                                             const std::vector<std::string>& standing,
                                             int64_t keep_last);

/// Removes what killed saves left in the folder. Call it only while this process holds the folder.
/// Returns the path that could not be removed and the system's cause, if any.
struct RemovalFailure {
  std::filesystem::path path;
  int error;
};
std::optional<RemovalFailure> remove_leftovers(const std::filesystem::path& folder);

/// Removes one checkpoint: renames it first, so that no part of it is ever taken for a checkpoint.
std::optional<RemovalFailure> remove_checkpoint(const std::filesystem::path& checkpoint);

/// A folder that this process holds.
struct HeldFolder {
  Descriptor file;                     // FOLDER/lock
  bool locked = false;                 // false where the file system has no locks
  std::atomic<bool> has_run = false;   // a FolderLock of this process is alive
  std::mutex saving;                   // held by the thread that saves
  std::map<std::string, Marks> marks;  // of the checkpoints in it; under `saving`
};

/// Holds the folder, which is made if there is none, for one save or for a run; shared if this
/// process holds it already. Throws as FolderLock.
std::shared_ptr<HeldFolder> hold_folder(const std::filesystem::path& folder, bool for_a_run);

}  // namespace demi::checkpoint
