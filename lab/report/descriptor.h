#pragma once

#include <filesystem>
#include <string_view>
#include <utility>

#include "demi/core/export.h"

namespace demi::report {

/// Owns a file descriptor. Every failing call throws TrainingError with the file, the system's
/// words and advice.
class DEMI_API Descriptor {
 public:
  Descriptor() = default;
  Descriptor(std::filesystem::path path, int flags);
  Descriptor(Descriptor&& other) noexcept
      : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();

  bool open() const { return fd_ >= 0; }
  int get() const { return fd_; }
  const std::filesystem::path& path() const { return path_; }

  void write_all(std::string_view text) const;
  void append(std::string_view text) const;  // all of it, or the file stays as long as it was
  void sync() const;
  void close();  // reports what the kernel kept back until now; the destructor cannot

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

/// Throws TrainingError: `what` with the path, errno in words, and what to do about it.
[[noreturn]] void throw_file_error(std::string_view where, std::string_view what,
                                   const std::filesystem::path& path, int error);

}  // namespace demi::report
