#include "demi/core/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <random>
#include <utility>

namespace demi {

std::filesystem::path temporary_name(const std::filesystem::path& path) {
  constexpr unsigned kOthers = 1'000'000'000;  // processes of other containers may have the number
  return fmt::format("{}.{}{:09}.tmp", path.string(), getpid(), std::random_device()() % kOthers);
}

AtomicFile::AtomicFile(std::filesystem::path path, std::string_view elsewhere)
    : path_(std::move(path)),
      elsewhere_(elsewhere),
      file_(temporary_name(path_), O_WRONLY | O_CREAT | O_TRUNC, elsewhere, path_) {}

AtomicFile::~AtomicFile() {
  if (!committed_) ::unlink(file_.path().c_str());
}

void AtomicFile::commit() {
  file_.sync();
  file_.close();
  if (std::rename(file_.path().c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(file_.path().c_str());
    throw_file_error("core.AtomicFile", path_, "cannot be replaced", error, elsewhere_);
  }
  committed_ = true;
  sync_folder(path_.parent_path(), elsewhere_);
}

void write_atomically(const std::filesystem::path& path, std::string_view content,
                      std::string_view elsewhere) {
  AtomicFile file(path, elsewhere);
  file.write(content);
  file.commit();
}

}  // namespace demi
