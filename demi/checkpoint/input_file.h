#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "demi/core/error.h"
#include "demi/core/export.h"

namespace demi::checkpoint {

/// A file that the system does not let be read (no permission, a failing disk): its bytes may be
/// whole.
class UnreadableError : public DataError {
 public:
  using DataError::DataError;
};

/// The text for an error message: shortened, saying how long it was, and with its control
/// characters escaped (\x1b).
DEMI_API std::string excerpt(std::string_view text);

/// Throws errors about one file.
struct Fault {
  std::filesystem::path path;
  std::string_view where = "checkpoint.load_safetensors";

  /// Throws DataError. `found` is shortened, because it may be all of a damaged header.
  [[noreturn]] DEMI_API void operator()(std::string_view what, uint64_t offset,
                                        std::string_view found, std::string_view expected) const;
};

/// A file's bytes in memory: private pages, so that writing to them changes no file.
class Mapping {
 public:
  Mapping(void* data, uint64_t bytes) : data_(static_cast<char*>(data)), bytes_(bytes) {}
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  char* data() const { return data_; }
  /// Gives the whole pages of these bytes back to the system, which reads them again if they are
  /// needed.
  void release(uint64_t begin, uint64_t end) const;

 private:
  char* data_;
  uint64_t bytes_;
};

/// A regular file that is being read. Everything throws DataError, which names the file, where it
/// is not possible; an UnreadableError where the system does not let it.
class InputFile {
 public:
  /// `expected`: what kind of file it should be, for messages.
  InputFile(const std::filesystem::path& path, std::string_view where, std::string_view expected);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const Fault& fault() const { return fault_; }
  uint64_t bytes() const { return bytes_; }
  void read(void* to, uint64_t offset, uint64_t bytes) const;
  std::shared_ptr<const Mapping> map() const;

 private:
  [[noreturn]] void refuse(std::string_view what, int error) const;

  Fault fault_;
  int fd_ = -1;
  uint64_t bytes_ = 0;
};

/// The kind of a file by its first bytes, and advice if it should have been a safetensors file.
/// `name` is empty if the bytes match no kind.
struct FileKind {
  std::string_view name;    // "a PNG picture"
  std::string_view advice;  // for the error's end
};

/// The kind of a file that begins with `first`: its first 8 bytes, or all of a shorter one.
DEMI_API FileKind file_kind(std::string_view first);

}  // namespace demi::checkpoint
