#include "demi/core/descriptor.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <tuple>

#include "demi/core/error.h"

namespace demi {
namespace {

std::string advice_for(int error, std::string_view elsewhere) {
  const std::string other(elsewhere);
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "free some space, or " + other;
    case EACCES:
    case EPERM:
    case EROFS:
      return "make the folder writable, or " + other;
    default:
      return other;
  }
}

}  // namespace

void throw_file_error(std::string_view where, const std::filesystem::path& path,
                      std::string_view what, int error, std::string_view elsewhere) {
  throw TrainingError({.where = where,
                       .what = path.string() + " " + std::string(what),
                       .seen = std::generic_category().message(error),
                       .advice = advice_for(error, elsewhere)});
}

Descriptor::Descriptor(std::filesystem::path path, int flags, std::string_view elsewhere,
                       std::filesystem::path shown)
    : path_(std::move(path)),
      shown_(shown.empty() ? path_ : std::move(shown)),
      elsewhere_(elsewhere) {
  do fd_ = ::open(path_.c_str(), flags | O_CLOEXEC, 0666);
  while (fd_ < 0 && errno == EINTR);
  if (fd_ < 0) fail("cannot be opened", errno);
}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(shown_, other.shown_);
  std::swap(elsewhere_, other.elsewhere_);
  std::swap(fd_, other.fd_);
  return *this;
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

void Descriptor::fail(std::string_view what, int error) const {
  throw_file_error("core.Descriptor", shown_, what, error, elsewhere_);
}

void Descriptor::write_all(const void* data, std::size_t bytes) const {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(fd_, next, bytes);  // at most 2 GiB at once
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("cannot be written", errno);
    if (written == 0) fail("cannot be written", EIO);
    next += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

void Descriptor::write_at(std::string_view text, uint64_t offset) const {
  while (!text.empty()) {
    const ssize_t written = ::pwrite(fd_, text.data(), text.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail("cannot be written", written < 0 ? errno : EIO);
    text.remove_prefix(static_cast<std::size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
}

void Descriptor::append(std::string_view text) const {
  const off_t before = ::lseek(fd_, 0, SEEK_END);
  try {
    write_all(text);
  } catch (...) {
    // Takes back the part that went out before the disk was full. A pipe cannot, and no run resumes
    // from one.
    if (before >= 0) std::ignore = ::ftruncate(fd_, before);
    throw;
  }
}

void Descriptor::start_sync() const {
#if defined(SYNC_FILE_RANGE_WRITE)
  ::sync_file_range(fd_, 0, 0, SYNC_FILE_RANGE_WRITE);  // a hint: sync() reports what fails
#endif
}

void Descriptor::sync() const {
  int result = 0;
  do result = ::fsync(fd_);
  while (result != 0 && errno == EINTR);
  // Pipes and some network file systems cannot sync: there is nothing there to keep.
  if (result != 0 && errno != EINVAL && errno != ENOTSUP && errno != EROFS)
    fail("cannot be written", errno);
}

void Descriptor::close() {
  if (fd_ >= 0 && ::close(std::exchange(fd_, -1)) != 0 && errno != EINTR)
    fail("cannot be written", errno);
}

void sync_folder(const std::filesystem::path& folder, std::string_view elsewhere) {
  const std::filesystem::path path = folder.empty() ? "." : folder;
  if (::access(path.c_str(), R_OK) != 0 && errno == EACCES) return;
  Descriptor descriptor(path, O_RDONLY | O_DIRECTORY, elsewhere);
  descriptor.sync();
  descriptor.close();
}

}  // namespace demi
