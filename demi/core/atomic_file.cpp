#include "demi/core/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "demi/core/error.h"

namespace demi {

AtomicFile::AtomicFile(std::filesystem::path path)
    : path_(std::move(path)), temporary_(fmt::format("{}.{}.tmp", path_.string(), getpid())) {
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0) fail("cannot be made");
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::fail(std::string_view what) const {
  const int code = errno;
  throw TrainingError(
      {.where = "core.AtomicFile",
       .what = fmt::format("{} {}", path_.string(), what),
       .seen = std::strerror(code),
       .advice = code == ENOSPC || code == EDQUOT
                     ? "free some space, or write to another disk; an older version is unharmed"
                     : "write to a folder that exists and that you may write to"});
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor_, next, std::min<std::size_t>(bytes, 1u << 30));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("cannot be written");
    next += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

void AtomicFile::commit() {
  if (::fsync(descriptor_) != 0) fail("cannot be written");
  const int closed = ::close(std::exchange(descriptor_, -1));
  if (closed != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int code = errno;
    ::unlink(temporary_.c_str());
    errno = code;
    fail("cannot be written");
  }
  // The new name itself reaches the disk with its folder; a file system that cannot do that still
  // has whole files.
  const std::filesystem::path folder = path_.parent_path().empty() ? "." : path_.parent_path();
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);
  ::close(descriptor);
}

void write_atomically(const std::filesystem::path& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit();
}

}  // namespace demi
