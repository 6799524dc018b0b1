#pragma once

#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "demi/core/descriptor.h"

namespace demi::checkpoint {

/// A folder that this process holds.
struct HeldFolder {
  Descriptor file;                          // FOLDER/lock
  bool locked = false;                      // false where the file system has no locks
  std::atomic<bool> has_run = false;        // a FolderLock of this process is alive
  std::mutex saving;                        // held by the thread that saves
  std::map<std::string, std::string> runs;  // of checkpoints that stand in it; under `saving`
};

/// Holds the folder, which is made if there is none, for one save or for a run; shared if this
/// process holds it already. Throws as FolderLock.
std::shared_ptr<HeldFolder> hold_folder(const std::filesystem::path& folder, bool for_a_run);

}  // namespace demi::checkpoint
