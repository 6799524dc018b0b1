#include "lab/files/archive.h"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>

#include "demi/core/error.h"
#include "lab/files/damage.h"
#include "lab/files/tar_reader.h"

namespace demi::files {
namespace {

namespace fs = std::filesystem;

/// A member's name below the folder. Throws DataError if it points out of the folder.
fs::path safe_name(const fs::path& archive, const fs::path& name) {
  const fs::path normal = name.lexically_normal();
  if (normal.is_absolute() || (!normal.empty() && *normal.begin() == ".."))
    report_damage({.where = "files.unpack",
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
    throw TrainingError({.where = "files.unpack",
                         .what = file.string() + " cannot be written",
                         .advice = "free some space, or unpack to another folder"});
}

std::string file_name(archive_entry* entry) {
  return fs::path(archive_entry_pathname(entry)).filename().string();
}

/// All of a member, at most `most` bytes. The size in its header may not be what follows.
std::string content_of(const fs::path& archive, TarReader& reader, archive_entry* entry,
                       uint64_t most) {
  const auto refuse = [&](const std::string& found) {
    report_damage({.where = "files.read_members",
                   .file = archive,
                   .what = "a member is longer than its kind can be",
                   .found = fmt::format("{} in {}", found, file_name(entry)),
                   .expected = fmt::format("at most {} bytes", most)});
  };
  if (const auto size = archive_entry_size(entry); static_cast<uint64_t>(size) > most)
    refuse(fmt::format("{} bytes", size));
  std::string content;
  reader.content([&](const void* block, std::size_t bytes) {
    if (bytes > most - content.size()) refuse("more bytes than its header says");
    content.append(static_cast<const char*>(block), bytes);
  });
  return content;
}

}  // namespace

std::map<std::string, std::string> read_members(const fs::path& archive,
                                                const std::set<std::string>& names,
                                                uint64_t most_bytes) {
  TarReader reader(archive);
  std::map<std::string, std::string> found;
  while (archive_entry* entry = reader.next()) {
    const std::string name = file_name(entry);
    if (!names.contains(name) || archive_entry_filetype(entry) != AE_IFREG) continue;
    if (found.contains(name))
      report_damage({.where = "files.read_members",
                     .file = archive,
                     .what = "a file occurs twice in the archive",
                     .found = name,
                     .expected = "each file once"});
    found.emplace(name, content_of(archive, reader, entry, most_bytes));
  }
  return found;
}

std::set<std::string> members_among(const fs::path& archive, const std::set<std::string>& names) {
  TarReader reader(archive);
  std::set<std::string> found;
  while (archive_entry* entry = reader.next())
    if (const std::string name = file_name(entry); names.contains(name)) found.insert(name);
  return found;
}

void unpack(const fs::path& archive, const fs::path& folder) {
  if (fs::exists(folder))
    report_damage({.where = "files.unpack",
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

}  // namespace demi::files
