#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "demi/core/export.h"

namespace demi {

/// Advice for a file that cannot be written, if its writer knows nothing better.
inline constexpr std::string_view kWriteElsewhere =
    "write to a folder that exists and that you may write to";

/// Owns a file descriptor. Every failing call throws TrainingError with the file, the system's
/// words and advice. Not thread-safe.
class DEMI_API Descriptor {
 public:
  Descriptor() = default;
  /// Opens the file, with mode 0666 if it is created. `elsewhere` is the advice on another place
  /// ("point DEMI_RUNS elsewhere"); messages name `shown`, or `path` if that is empty.
  Descriptor(std::filesystem::path path, int flags, std::string_view elsewhere = kWriteElsewhere,
             std::filesystem::path shown = {});
  Descriptor(Descriptor&& other) noexcept
      : path_(std::move(other.path_)),
        shown_(std::move(other.shown_)),
        elsewhere_(std::move(other.elsewhere_)),
        fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();

  /// Whether there is an open file.
  bool open() const { return fd_ >= 0; }
  /// The file's number in this process; -1: none.
  int get() const { return fd_; }
  /// The path that it was opened by, for messages.
  const std::filesystem::path& path() const { return path_; }

  /// Writes all of it. Throws TrainingError with the path and the system's reason: a full disk.
  void write_all(const void* data, std::size_t bytes) const;
  void write_all(std::string_view text) const { write_all(text.data(), text.size()); }
  /// Writes the text over bytes that were written already.
  void write_at(std::string_view text, uint64_t offset) const;
  void append(std::string_view text) const;  // all of it, or the file stays as long as it was
  /// Starts to write the new bytes to the disk, which is then busy before sync().
  void start_sync() const;
  void sync() const;
  void close();  // reports errors that the kernel kept back until now; the destructor cannot

 private:
  [[noreturn]] void fail(std::string_view what, int error) const;

  std::filesystem::path path_, shown_;
  std::string elsewhere_;
  int fd_ = -1;
};

/// Writes a folder's names to the disk, so that a file that was made or renamed in it stays there
/// if the machine stops. Does nothing on a file system that cannot do that, and for a folder that
/// may not be read. Throws TrainingError if the disk fails.
DEMI_API void sync_folder(const std::filesystem::path& folder,
                          std::string_view elsewhere = kWriteElsewhere);

/// Throws TrainingError: the path, `what` ("cannot be written"), errno in words, and what to do
/// about it.
[[noreturn]] DEMI_API void throw_file_error(std::string_view where,
                                            const std::filesystem::path& path,
                                            std::string_view what, int error,
                                            std::string_view elsewhere = kWriteElsewhere);

}  // namespace demi
