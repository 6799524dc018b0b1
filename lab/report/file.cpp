#include "lab/report/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "lab/report/descriptor.h"

namespace demi::report {
namespace {

/// Removes the temporary unless it has become the file.
struct Temporary {
  std::filesystem::path path;
  bool keep = false;
  ~Temporary() {
    if (!keep) ::unlink(path.c_str());
  }
};

void sync_folder(const std::filesystem::path& folder) {
  Descriptor(folder, O_RDONLY | O_DIRECTORY).sync();
}

}  // namespace

void write_file_atomically(const std::filesystem::path& path, std::string_view text) {
  // One name for each process: two that write the same report cannot mix their halves.
  Temporary temporary{path.string() + ".tmp." + std::to_string(::getpid())};
  Descriptor file(temporary.path, O_WRONLY | O_CREAT | O_TRUNC);
  file.write_all(text);
  file.sync();
  file.close();
  if (std::rename(temporary.path.c_str(), path.c_str()) != 0) {
    throw_file_error("report.write_file_atomically", "cannot replace", path, errno);
  }
  temporary.keep = true;
  sync_folder(path.has_parent_path() ? path.parent_path() : std::filesystem::path("."));
}

}  // namespace demi::report
