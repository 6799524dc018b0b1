#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "demi/checkpoint/checkpoint.h"
#include "demi/checkpoint/folder.h"

namespace demi::checkpoint {

/// The run of a checkpoint whose manifest names none: an older demi's, or Python's.
inline constexpr const char* kNoRunId = "none";

/// Lets this process continue that run: its saves to the run's folder belong to the run, and the
/// run's checkpoints there are its own. Does nothing for an empty id.
void take_over_run(const std::string& run);

/// The part of a folder that belongs to the run which saves there.
struct OwnCheckpoints {
  std::string run;                    // its id
  std::vector<std::string> named;     // those in `last`, in its order; none if it is another run's
  std::vector<std::string> standing;  // by step
  std::vector<std::string> others;    // of other runs, by step
};

/// Separates the run's checkpoints from those of others among the `standing` ones. The run is the
/// one that this process has begun or taken over: a process that starts again without loading is
/// another run. A folder without a readable manifest belongs to no run, so that it is never
/// removed. Without ids the names in `last` are those of the run if it took such a checkpoint over.
/// `run`: the id if it is known, else empty.
OwnCheckpoints own_checkpoints(const std::filesystem::path& folder, HeldFolder& held,
                               const std::vector<std::string>& standing, const std::string& run);

/// Warns once (TORCH_WARN) for each folder and process if the folder holds checkpoints of other
/// runs.
void warn_of_other_runs(const std::filesystem::path& folder, const OwnCheckpoints& own);

/// The part of a save that Writer does before another thread writes: the warning above, for which
/// that thread has no handler, and the errors that save() throws before it writes anything.
void warn_of_other_runs(const std::filesystem::path& folder, const std::string& run);
void check_save(int64_t step, const Checkpoint& checkpoint, const SaveOptions& options);

}  // namespace demi::checkpoint
