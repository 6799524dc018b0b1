#pragma once

#include <filesystem>
#include <memory>

#include "demi/core/export.h"

namespace demi::checkpoint {

struct HeldFolder;

/// A run's hold on a folder of checkpoints, so that no two runs write to one folder: FOLDER/lock,
/// locked by flock(2), holds the process id and the machine's name. The system releases it if the
/// process dies. checkpoint::save in the process that holds it works as usual. On a file system
/// without locks nothing is refused. A process that is forked holds nothing.
class DEMI_API FolderLock {
 public:
  /// Makes the folder if there is none. Throws UsageError, which names the process, if another
  /// process or another FolderLock of this process holds it; TrainingError if the disk fails.
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&& other) noexcept;

 private:
  std::shared_ptr<HeldFolder> held_;
};

}  // namespace demi::checkpoint
