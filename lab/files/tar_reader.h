#pragma once

#include <archive.h>
#include <archive_entry.h>

#include <cstddef>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

namespace demi::files {

/// Bytes from front to back.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  /// Up to `bytes`; fewer only at the end. Throws DataError for damaged or missing bytes.
  virtual std::size_t read(void* to, std::size_t bytes) = 0;
};

/// A tar archive (gzip, xz or bare) that is read from front to back. libarchive does not compare
/// gzip's CRC-32, and reads no further than the end of the tar in it; so the bytes are decompressed
/// before it sees them, with every checksum compared, and read to the end. Throws DataError.
class TarReader {
 public:
  explicit TarReader(std::filesystem::path path);
  TarReader(const TarReader&) = delete;
  TarReader& operator=(const TarReader&) = delete;

  /// The next member. nullptr: there is none, and the file was whole to its end.
  archive_entry* next();

  /// The member's content, piece by piece.
  void content(const std::function<void(const void*, std::size_t)>& take);

 private:
  static la_ssize_t give(archive* tar, void* reader, const void** block);
  void check(int code);
  void read_to_end();

  std::filesystem::path path_;
  std::unique_ptr<ByteSource> source_;
  std::vector<char> buffer_;
  std::exception_ptr failure_;  // of the source: exceptions do not pass through libarchive
  std::unique_ptr<archive, int (*)(archive*)> tar_;
};

}  // namespace demi::files
