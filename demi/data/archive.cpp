#include "demi/data/archive.h"

#include <archive.h>
#include <archive_entry.h>
#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <utility>
#include <vector>

#include "demi/core/error.h"
#include "demi/data/damage.h"

namespace demi::data {
namespace {

namespace fs = std::filesystem;

/// A tar archive that is read from front to back.
class TarReader {
 public:
  explicit TarReader(const fs::path& path)
      : path_(path), archive_(archive_read_new(), archive_read_free) {
    archive_read_support_filter_gzip(archive_.get());
    archive_read_support_filter_xz(archive_.get());
    archive_read_support_format_tar(archive_.get());
    check(archive_read_open_filename(archive_.get(), path.c_str(), 1 << 18));
  }

  /// The next member, or nullptr at the end.
  archive_entry* next() {
    archive_entry* entry = nullptr;
    const int code = archive_read_next_header(archive_.get(), &entry);
    if (code == ARCHIVE_EOF) return nullptr;
    check(code);
    return entry;
  }

  /// Its content, piece by piece.
  void content(const std::function<void(const void*, std::size_t)>& take) {
    const void* block = nullptr;
    std::size_t bytes = 0;
    la_int64_t offset = 0;
    for (;;) {
      const int code = archive_read_data_block(archive_.get(), &block, &bytes, &offset);
      if (code == ARCHIVE_EOF) return;
      check(code);
      take(block, bytes);
    }
  }

 private:
  void check(int code) {
    if (code == ARCHIVE_OK) return;
    const char* message = archive_error_string(archive_.get());
    report_damage({.where = "data.archive",
                   .file = path_,
                   .what = "the archive cannot be read",
                   .place = fmt::format("offset {}", archive_filter_bytes(archive_.get(), -1)),
                   .found = message == nullptr ? "an unknown error" : message,
                   .expected = "a whole tar archive, gzip or xz",
                   .advice = "get it again (demi data get NAME resumes and checks)"});
  }

  fs::path path_;
  std::unique_ptr<archive, int (*)(archive*)> archive_;
};

/// What a member is called below the folder, or a complaint where that lies outside of it.
fs::path safe_name(const fs::path& archive, const fs::path& name) {
  const fs::path normal = name.lexically_normal();
  if (normal.is_absolute() || (!normal.empty() && *normal.begin() == ".."))
    report_damage({.where = "data.unpack",
                   .file = archive,
                   .what = "a member points out of the folder",
                   .found = name.string(),
                   .expected = "a relative name without .."});
  return normal;
}

void write_member(TarReader& reader, const fs::path& file) {
  std::ofstream out(file, std::ios::binary);
  reader.content([&](const void* block, std::size_t bytes) {
    out.write(static_cast<const char*>(block), static_cast<std::streamsize>(bytes));
  });
  out.close();
  if (!out)
    throw TrainingError({.where = "data.unpack",
                         .what = file.string() + " cannot be written",
                         .advice = "free some space, or unpack to another folder"});
}

}  // namespace

std::map<std::string, std::string> read_members(const fs::path& archive,
                                                const std::set<std::string>& names) {
  TarReader reader(archive);
  std::map<std::string, std::string> found;
  while (found.size() < names.size()) {
    archive_entry* entry = reader.next();
    if (entry == nullptr) break;
    const std::string name = fs::path(archive_entry_pathname(entry)).filename().string();
    if (!names.contains(name)) continue;
    std::string& content = found[name];
    reader.content([&](const void* block, std::size_t bytes) {
      content.append(static_cast<const char*>(block), bytes);
    });
  }
  return found;
}

std::set<std::string> member_names(const fs::path& archive) {
  TarReader reader(archive);
  std::set<std::string> names;
  while (archive_entry* entry = reader.next())
    names.insert(fs::path(archive_entry_pathname(entry)).filename().string());
  return names;
}

void unpack(const fs::path& archive, const fs::path& folder) {
  if (fs::exists(folder))
    report_damage({.where = "data.unpack",
                   .file = folder,
                   .what = "the folder exists already",
                   .advice = "remove it or choose another"});
  TarReader reader(archive);
  const fs::path growing = fmt::format("{}.{}.tmp", folder.string(), getpid());
  struct Cleanup {
    const fs::path& path;
    ~Cleanup() {
      std::error_code ignored;
      fs::remove_all(path, ignored);
    }
  } const cleanup{growing};
  fs::create_directories(growing);
  while (archive_entry* entry = reader.next()) {
    const fs::path file = growing / safe_name(archive, archive_entry_pathname(entry));
    if (archive_entry_filetype(entry) == AE_IFDIR) fs::create_directories(file);
    if (archive_entry_filetype(entry) != AE_IFREG || archive_entry_hardlink(entry) != nullptr)
      continue;
    fs::create_directories(file.parent_path());
    write_member(reader, file);
  }
  fs::rename(growing, folder);
}

}  // namespace demi::data
