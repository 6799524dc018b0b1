#include "lab/report/run_folder.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <functional>
#include <map>

#include "demi/core/atomic_file.h"
#include "demi/core/descriptor.h"
#include "demi/core/error.h"
#include "lab/report/format.h"

namespace demi::report {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kWhere = "report.RunFolder";

bool accepted(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) ||
         std::string_view("._+-").find(c) != std::string_view::npos;
}

void check_name(std::string_view name) {
  if (!name.empty() && name[0] != '.' && name.size() <= 200 &&
      std::all_of(name.begin(), name.end(), accepted)) {
    return;
  }
  refuse({.where = kWhere,
          .what = "this name cannot be a run folder's",
          .seen = "'" + std::string(name) + "'",
          .accepted = "letters, digits, '.', '_', '+', '-', not starting with '.', at most 200"});
}

/// NNN of `name-NNN`, 0 where `entry` is another folder.
int number_of(const std::string& entry, std::string_view name) {
  if (!entry.starts_with(name) || entry.size() <= name.size() + 1 || entry[name.size()] != '-')
    return 0;
  int number = 0;
  const char* const first = entry.data() + name.size() + 1;
  const char* const last = entry.data() + entry.size();
  const auto [end, error] = std::from_chars(first, last, number);
  return error == std::errc() && end == last ? number : 0;
}

/// Calls `use(number, folder)` for each folder ROOT/NAME-NNN.
template <class Use>
void for_each_folder(const fs::path& root, std::string_view name, const Use& use) {
  std::error_code error;
  for (fs::directory_iterator entry(root, error), end; !error && entry != end;
       entry.increment(error)) {
    const int number = number_of(entry->path().filename().string(), name);
    if (number > 0) use(number, entry->path());
  }
}

int highest_number(const fs::path& root, std::string_view name) {
  int highest = 0;
  for_each_folder(root, name,
                  [&](int number, const fs::path&) { highest = std::max(highest, number); });
  return highest;
}

fs::path make_numbered(const fs::path& root, std::string_view name) {
  for (int number = highest_number(root, name) + 1;; ++number) {
    fs::path folder = root / fmt::format("{}-{:03}", name, number);
    if (::mkdir(folder.c_str(), 0777) == 0) return folder;
    if (errno != EEXIST)
      throw_file_error(kWhere, folder, "cannot be made", errno, kOtherRunsFolder);
  }
}

/// NAME.NUMBER.tmp, which an AtomicFile of a killed process left.
bool is_temporary(std::string name) {
  constexpr std::string_view kEnding = ".tmp";
  if (!name.ends_with(kEnding)) return false;
  name.resize(name.size() - kEnding.size());
  const std::size_t digits = name.find_last_not_of("0123456789");
  return digits != name.npos && digits > 0 && digits + 1 < name.size() && name[digits] == '.';
}

void remove_temporary_files(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> found;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    if (is_temporary(entry->path().filename()) && fs::is_regular_file(entry->symlink_status()))
      found.push_back(entry->path());
  for (const fs::path& file : found) fs::remove(file, error);
}

void check_space(const fs::path& folder, std::uint64_t needed_bytes) {
  struct statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) != 0) return;  // unknown is not too little
  const std::uint64_t free = std::uint64_t{disk.f_bavail} * disk.f_frsize;
  if (free >= needed_bytes) return;
  throw TrainingError(
      {.where = kWhere,
       .what = "the disk of the run folder " + folder.string() + " is too full for this run",
       .seen = format_bytes(static_cast<double>(free)) + " free",
       .accepted = format_bytes(static_cast<double>(needed_bytes)) + " or more",
       .advice = "free some space, or " + std::string(kOtherRunsFolder)});
}

}  // namespace

fs::path runs_root(const fs::path& given) {
  if (!given.empty()) return given;
  const char* const set = std::getenv("DEMI_RUNS");
  return set != nullptr && *set != '\0' ? set : "runs";
}

std::vector<fs::path> run_folders(std::string_view name, const fs::path& root) {
  std::map<int, fs::path, std::greater<>> found;
  for_each_folder(root, name, [&](int number, const fs::path& folder) { found[number] = folder; });
  std::vector<fs::path> folders;
  folders.reserve(found.size());
  for (const auto& [number, folder] : found) folders.push_back(folder);
  return folders;
}

RunFolder RunFolder::create(std::string_view name, const fs::path& root,
                            std::uint64_t needed_bytes) {
  check_name(name);
  std::error_code error;
  fs::create_directories(root, error);
  if (error) throw_file_error(kWhere, root, "cannot be made", error.value(), kOtherRunsFolder);
  const fs::path folder = make_numbered(root, name);
  try {
    check_space(folder, needed_bytes);
    write_atomically(folder / ".writable", std::string(4096, ' '), kOtherRunsFolder);
    fs::remove(folder / ".writable");
  } catch (...) {
    fs::remove_all(folder, error);
    throw;
  }
  return RunFolder(folder);
}

RunFolder RunFolder::open(const fs::path& folder) {
  if (!fs::is_directory(folder)) {
    throw DataError({.where = kWhere,
                     .what = "no such run folder",
                     .seen = folder.string(),
                     .advice = "look into " + runs_root().string() + " for the runs there are"});
  }
  remove_temporary_files(folder);
  return RunFolder(folder);
}

}  // namespace demi::report
