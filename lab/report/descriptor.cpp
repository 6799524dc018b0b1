#include "lab/report/descriptor.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <tuple>

#include "demi/core/error.h"

namespace demi::report {
namespace {

std::string_view advice_for(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "free some space, or point DEMI_RUNS or --run-dir at another disk";
    case EACCES:
    case EPERM:
    case EROFS:
      return "make the folder writable, or point DEMI_RUNS or --run-dir elsewhere";
    default:
      return "point DEMI_RUNS or --run-dir elsewhere";
  }
}

}  // namespace

void throw_file_error(std::string_view where, std::string_view what,
                      const std::filesystem::path& path, int error) {
  throw TrainingError({.where = where,
                       .what = std::string(what) + " " + path.string(),
                       .seen = std::generic_category().message(error),
                       .advice = advice_for(error)});
}

Descriptor::Descriptor(std::filesystem::path path, int flags) : path_(std::move(path)) {
  do fd_ = ::open(path_.c_str(), flags | O_CLOEXEC, 0666);
  while (fd_ < 0 && errno == EINTR);
  if (fd_ < 0) throw_file_error("report.file", "cannot open", path_, errno);
}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  return *this;
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

void Descriptor::write_all(std::string_view text) const {
  while (!text.empty()) {
    const ssize_t written = ::write(fd_, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_file_error("report.file", "cannot write", path_, errno);
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

void Descriptor::append(std::string_view text) const {
  const off_t before = ::lseek(fd_, 0, SEEK_END);
  try {
    write_all(text);
  } catch (...) {
    // On a full disk a part may have gone out; a pipe cannot take it back, and nobody resumes from
    // one.
    if (before >= 0) std::ignore = ::ftruncate(fd_, before);
    throw;
  }
}

void Descriptor::sync() const {
  // Pipes and some network file systems cannot sync; there is nothing to lose there that we could
  // keep.
  if (::fsync(fd_) != 0 && errno != EINVAL && errno != ENOTSUP && errno != EROFS) {
    throw_file_error("report.file", "cannot write", path_, errno);
  }
}

void Descriptor::close() {
  if (fd_ >= 0 && ::close(std::exchange(fd_, -1)) != 0 && errno != EINTR) {
    throw_file_error("report.file", "cannot write", path_, errno);
  }
}

}  // namespace demi::report
