#pragma once

#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace demi::files {

/// A file's bytes from front to back: decompressed if it is gzip (recognised by its content), as
/// they are otherwise. zlib compares CRC-32 and length, which come behind the compressed bytes:
/// the data are known to be right only after reading to the end.
class GzipReader {
 public:
  /// `where` begins the messages. Throws DataError: no such file, no permission.
  GzipReader(std::string where, std::filesystem::path path);

  /// Up to `bytes`; fewer only at the end. Throws DataError for damaged or missing bytes.
  std::size_t read(void* to, std::size_t bytes);

 private:
  struct Close {
    void operator()(gzFile file) const { gzclose(file); }
  };
  std::string where_;
  std::filesystem::path path_;
  std::unique_ptr<gzFile_s, Close> file_;
  uint64_t total_ = 0;  // bytes given so far
};

/// The whole of a file, as GzipReader reads it.
std::string read_gzip(const std::string& where, const std::filesystem::path& path);

}  // namespace demi::files
