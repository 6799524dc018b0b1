#include "lab/data/picture_folder.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "lab/data/damage.h"

namespace demi::data {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kReadFolder = "data.read_picture_folder";
constexpr std::string_view kLayout = "a folder for each class: FOLDER/class/name.jpg";

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

bool is_picture(const fs::path& path) {
  std::string ending = path.extension().string();
  std::ranges::transform(ending, ending.begin(), [](unsigned char c) { return std::tolower(c); });
  return !is_hidden(path) && (ending == ".jpg" || ending == ".jpeg" || ending == ".png");
}

std::vector<std::string> class_folders(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code code;
  for (fs::directory_iterator it(folder, code), end; !code && it != end; it.increment(code))
    if (it->is_directory() && !is_hidden(it->path())) names.push_back(it->path().filename());
  if (names.empty())
    report_damage({.where = kReadFolder,
                   .file = folder,
                   .what = "there are no classes",
                   .found = code ? code.message() : "no folder in it",
                   .expected = std::string(kLayout),
                   .advice = "name the folder above the classes, or above train and val, with "
                             "--data-dir"});
  std::ranges::sort(names);
  return names;
}

bool begins_with(const fs::path& path, const fs::path& start) {
  return std::ranges::mismatch(path, start).in2 == start.end();
}

/// A link to a folder above it would give the pictures there, those of other classes too, again and
/// again under this class.
void require_no_circle(const fs::path& link, const fs::path& class_folder) {
  std::error_code code;
  const fs::path target = fs::canonical(link, code);
  if (code) return;
  for (fs::path above = link.parent_path();; above = above.parent_path()) {
    if (begins_with(fs::canonical(above, code), target))
      report_damage({.where = kReadFolder,
                     .file = link,
                     .what = "the link leads to a folder above it",
                     .found = target.string(),
                     .expected = "links to pictures, and to folders elsewhere",
                     .advice = "take the link away"});
    if (above == class_folder) return;
  }
}

std::vector<fs::path> pictures_below(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code code;
  const auto links = fs::directory_options::follow_directory_symlink;
  for (fs::recursive_directory_iterator it(folder, links, code), end; !code && it != end;
       it.increment(code)) {
    const bool is_folder = it->is_directory(code);
    if (is_folder && it->is_symlink()) require_no_circle(it->path(), folder);
    if (is_picture(it->path()) && !is_folder) files.push_back(it->path());
  }
  if (code || files.empty())
    report_damage({.where = kReadFolder,
                   .file = folder,
                   .what = "the class has no pictures",
                   .found = code ? code.message() : "no .jpg, .jpeg or .png file",
                   .expected = std::string(kLayout),
                   .advice = "put pictures there, or take the folder away"});
  std::ranges::sort(files);
  return files;
}

int64_t class_of(const fs::path& folder, const std::string& name,
                 const std::vector<std::string>& classes) {
  const auto found = std::ranges::find(classes, name);
  if (found != classes.end()) return found - classes.begin();
  report_damage({.where = kReadFolder,
                 .file = folder / name,
                 .what = "the class is not among those that are trained on",
                 .found = name,
                 .expected = fmt::format("{}", fmt::join(classes, ", ")),
                 .advice = "train and test folders must have the same classes"});
}

}  // namespace

PictureFolder read_picture_folder(const fs::path& folder, const std::vector<std::string>& classes) {
  const std::vector<std::string> found = class_folders(folder);
  PictureFolder result{.files = {},
                       .labels = {},
                       .classes = classes.empty() ? found : classes,
                       .name = folder.string()};
  std::vector<int64_t> labels;
  for (const std::string& name : found) {
    const int64_t label = class_of(folder, name, result.classes);
    for (fs::path& file : pictures_below(folder / name)) {
      result.files.push_back(std::move(file));
      labels.push_back(label);
    }
  }
  result.labels = at::tensor(labels, at::kLong);
  return result;
}

PictureFolders find_picture_folders(const fs::path& folder) {
  std::error_code unreadable;
  if (!fs::is_directory(folder / "train", unreadable))
    return {.train = read_picture_folder(folder), .test = {}};
  PictureFolders result{.train = read_picture_folder(folder / "train"), .test = {}};
  for (const char* name : {"val", "valid", "validation", "test"})
    if (!result.test && fs::is_directory(folder / name, unreadable))
      result.test = read_picture_folder(folder / name, result.train.classes);
  return result;
}

}  // namespace demi::data
