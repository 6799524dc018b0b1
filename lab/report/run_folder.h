#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "demi/core/export.h"

namespace demi::report {

/// The advice of messages on another place for a run's files.
inline constexpr std::string_view kOtherRunsFolder = "point DEMI_RUNS or --run-dir elsewhere";

/// The folder of run folders: the `given` one (--run-dir), else DEMI_RUNS, else "runs" in the
/// current folder.
DEMI_API std::filesystem::path runs_root(const std::filesystem::path& given = {});

/// The folders ROOT/NAME-NNN, the highest number first.
DEMI_API std::vector<std::filesystem::path> run_folders(
    std::string_view name, const std::filesystem::path& root = runs_root());

/// A run's folder, ROOT/NAME-NNN, with all files that the run leaves:
///
///     config.json  metrics.jsonl  events.out.tfevents.*  report.html  checkpoints/  result.json
class DEMI_API RunFolder {
 public:
  /// Makes the folder with the number after the highest one there, and by no other process: two
  /// runs started together get two folders. Tries that a file can be written, and that
  /// `needed_bytes` are free, so that a failure is reported before training. Throws UsageError for
  /// a name with other characters than letters, digits, '.', '_', '+', '-' (or that starts with
  /// '.'), TrainingError if the folder cannot be made, written to, or is too small.
  static RunFolder create(std::string_view name, const std::filesystem::path& root = runs_root(),
                          std::uint64_t needed_bytes = 0);

  /// Opens an existing folder, to resume its run, and holds it: unfinished files of a killed
  /// process (NAME.NUMBER.tmp) are removed. Throws DataError if there is none.
  static RunFolder open(const std::filesystem::path& folder);

  /// The folder.
  const std::filesystem::path& path() const { return path_; }
  /// The path of a file of that name in it.
  std::filesystem::path file(std::string_view name) const { return path_ / name; }

 private:
  explicit RunFolder(std::filesystem::path path) : path_(std::move(path)) {}
  std::filesystem::path path_;
};

}  // namespace demi::report
