#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include "demi/core/descriptor.h"
#include "demi/core/export.h"

namespace demi {

/// Writes a file whole or not at all. The bytes go to a temporary file in the same folder
/// (NAME.NUMBER.tmp); commit() writes them to the disk (fsync), renames that file and synchronises
/// its folder. Without commit(), for example after an exception, the old file stays as it was. A
/// process that is killed leaves the temporary file behind.
class DEMI_API AtomicFile {
 public:
  /// `elsewhere`: as in Descriptor. Throws TrainingError if the file cannot be made (no permission,
  /// no folder, no space).
  explicit AtomicFile(std::filesystem::path path, std::string_view elsewhere = kWriteElsewhere);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Throws TrainingError if the disk is full or fails.
  void write(const void* data, std::size_t bytes) { file_.write_all(data, bytes); }
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// The temporary file's descriptor, for code that writes to it directly.
  const Descriptor& descriptor() const { return file_; }

  /// Call it once, last. Throws TrainingError if the disk fails; the old file then stays as it was,
  /// or the new one is in its place, if only the folder could not be synchronised.
  void commit();

 private:
  std::filesystem::path path_;
  std::string elsewhere_;
  Descriptor file_;  // of the temporary file
  bool committed_ = false;
};

/// Writes a whole file: AtomicFile with one write(). Throws TrainingError.
DEMI_API void write_atomically(const std::filesystem::path& path, std::string_view content,
                               std::string_view elsewhere = kWriteElsewhere);

/// NAME.NUMBER.tmp, under which something is made before it is renamed to `path`. Another name each
/// time: threads, processes and containers that write the same file cannot mix their halves. The
/// number is the process's, and nine random digits.
DEMI_API std::filesystem::path temporary_name(const std::filesystem::path& path);

}  // namespace demi
