#pragma once

#include <cstddef>
#include <filesystem>
#include <string_view>

#include "demi/core/export.h"

namespace demi {

/// Writes a file so that its name always leads to one whole version: the bytes go to a temporary
/// file beside it, commit() has them on the disk (fsync) and renames. Without commit(), on an
/// exception or when the process is killed, the old file stays as it was (a killed process leaves
/// the temporary one, NAME.PID.tmp).
class DEMI_API AtomicFile {
 public:
  /// Throws TrainingError where the file cannot be made (no permission, no folder, no space).
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Throws TrainingError where the disk is full or fails.
  void write(const void* data, std::size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }

  /// Once, last. Throws TrainingError; then the old file is unharmed.
  void commit();

 private:
  [[noreturn]] void fail(std::string_view what) const;

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int descriptor_ = -1;
};

/// The whole file at once.
DEMI_API void write_atomically(const std::filesystem::path& path, std::string_view content);

}  // namespace demi
