#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <thread>

#include "demi/checkpoint/checkpoint.h"
#include "demi/checkpoint/folder_lock.h"
#include "demi/core/export.h"

namespace demi::checkpoint {

/// Saves checkpoints to one folder while training continues: save() takes a snapshot and returns,
/// and a thread writes it, with the promises of checkpoint::save; where the system gives no thread,
/// save() writes it and returns then. Holds the folder's FolderLock.
/// Memory grows by one snapshot until it is written. Not thread-safe.
class DEMI_API Writer {
 public:
  /// Throws UsageError if another run holds the folder, TrainingError if it cannot be made.
  explicit Writer(std::filesystem::path folder);
  /// Waits until the snapshot is written. An error is lost then: call wait() first.
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  /// Waits until the snapshot before is written, takes one and returns. Throws what writing the one
  /// before threw; the new one is then not taken. Throws UsageError as checkpoint::save, at once.
  void save(int64_t step, const Checkpoint& checkpoint, const SaveOptions& options = {});

  /// Waits until the snapshot is written. Throws what writing it threw, once.
  void wait();

  /// Whether wait() would wait.
  bool is_writing() const { return is_writing_; }

  /// The folder of checkpoints that it writes to.
  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
  FolderLock lock_;
  bool has_saved_ = false;
  std::exception_ptr error_;
  std::atomic<bool> is_writing_ = false;
  std::thread thread_;
};

}  // namespace demi::checkpoint
