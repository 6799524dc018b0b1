#include "lab/data/picture_folder.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <span>
#include <string_view>
#include <system_error>

#include "lab/utf8.h"

namespace demi::data {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view kReadFolder = "data.read_picture_folder";
constexpr std::string_view kLayout = "a folder for each class: FOLDER/class/name.jpg";

bool is_hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

std::vector<std::string> class_folders(const fs::path& folder, const files::DamageReport& report) {
  std::vector<std::string> names;
  std::error_code code, unreadable;
  for (fs::directory_iterator it(folder, code), end; !code && it != end; it.increment(code)) {
    if (!it->is_directory(unreadable) || is_hidden(it->path())) continue;
    names.push_back(it->path().filename());
    if (lab::first_not_utf8(names.back()) == std::string_view::npos) continue;
    report({.where = kReadFolder,
            .file = it->path(),
            .what = "the name of the class is not UTF-8",
            .found = names.back(),
            .expected = "a name that reports and files can hold",
            .advice = "give the folder another name"});
    names.pop_back();
  }
  if (names.empty())
    report({.where = kReadFolder,
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

/// Whether a link in a class leads to a folder above itself: it would give the pictures there,
/// those of other classes too, again and again under this class.
bool leads_above(const fs::path& link, const fs::path& class_folder) {
  std::error_code code;
  const fs::path target = fs::canonical(link, code);
  for (fs::path above = link; !code && above != class_folder;) {
    above = above.parent_path();
    if (begins_with(fs::canonical(above, code), target)) return true;
  }
  return false;
}

std::vector<fs::path> pictures_below(const fs::path& folder, std::vector<fs::path>& others,
                                     const files::DamageReport& report) {
  std::vector<fs::path> files;
  std::error_code code, unreadable;
  const auto links = fs::directory_options::follow_directory_symlink;
  for (fs::recursive_directory_iterator it(folder, links, code), end; !code && it != end;
       it.increment(code)) {
    const bool is_folder = it->is_directory(unreadable);
    if (is_folder && it->is_symlink(unreadable) && leads_above(it->path(), folder)) {
      report({.where = kReadFolder,
              .file = it->path(),
              .what = "the link leads to a folder above it",
              .found = fs::read_symlink(it->path(), unreadable).string(),
              .expected = "links to pictures, and to folders elsewhere",
              .advice = "take the link away"});
      it.disable_recursion_pending();
    }
    if (is_folder && is_hidden(it->path())) it.disable_recursion_pending();
    if (is_folder || is_hidden(it->path())) continue;
    (is_picture(it->path()) ? files : others).push_back(it->path());
  }
  if (code || files.empty())
    report({.where = kReadFolder,
            .file = folder,
            .what = code ? "the class cannot be read" : "the class has no pictures",
            .found = code ? code.message() : "no .jpg, .jpeg or .png file",
            .expected = std::string(kLayout),
            .advice = "put pictures there, or take the folder away"});
  std::ranges::sort(files);
  return files;
}

std::optional<int64_t> class_of(const fs::path& folder, const std::string& name,
                                const std::vector<std::string>& classes,
                                const files::DamageReport& report) {
  const auto found = std::ranges::find(classes, name);
  if (found != classes.end()) return found - classes.begin();
  report({.where = kReadFolder,
          .file = folder / name,
          .what = "the class is not among those that are trained on",
          .found = name,
          .expected = fmt::format("{}", fmt::join(classes, ", ")),
          .advice = "these are the classes of the training: name test pictures of no other"});
  return std::nullopt;
}

/// All pictures of one class are learned from the first step on, to an accuracy of 100 %.
void require_two_classes(const fs::path& folder, const PictureFolder& train,
                         const files::DamageReport& report) {
  if (train.classes.size() != 1) return;
  report({.where = "data.find_picture_folders",
          .file = folder,
          .what = "all pictures have one class",
          .found = train.classes.front(),
          .expected = std::string(kLayout) + ", two classes or more",
          .advice = "add a folder for each other class; if the classes are elsewhere, name the "
                    "folder above them with --data-dir"});
}

std::string lower(std::string name) {
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name;
}

/// Folders in `folder` whose names say that they are parts of a data set.
std::vector<std::string> named_as_parts(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code code, unreadable;
  for (fs::directory_iterator it(folder, code), end; !code && it != end; it.increment(code)) {
    const std::string name = it->path().filename().string();
    for (const char* part : {"train", "training", "val", "valid", "validation", "test", "testing"})
      if (lower(name) == part && it->is_directory(unreadable)) names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

/// They would be classes, with the pictures of all classes, or be passed over.
void refuse_parts(const fs::path& folder, const std::vector<std::string>& names,
                  const files::DamageReport& report) {
  report({.where = "data.find_picture_folders",
          .file = folder,
          .what = "a folder is named as a part of a data set, and is none as it stands",
          .found = fmt::format("{}", fmt::join(names, ", ")),
          .expected = "FOLDER/train/class and FOLDER/val/class (or valid, validation, test), or "
                      "FOLDER/class alone",
          .advice = "give the parts these names; a class of such a name goes into FOLDER/train"});
}

std::optional<fs::path> test_folder(const fs::path& folder) {
  std::error_code unreadable;
  for (const char* name : {"val", "valid", "validation", "test"})
    if (fs::is_directory(folder / name, unreadable)) return folder / name;
  return std::nullopt;
}

}  // namespace

bool is_picture(const fs::path& path) {
  std::string ending = path.extension().string();
  std::ranges::transform(ending, ending.begin(), [](unsigned char c) { return std::tolower(c); });
  return !is_hidden(path) && (ending == ".jpg" || ending == ".jpeg" || ending == ".png");
}

PictureFolder read_picture_folder(const fs::path& folder, const std::vector<std::string>& classes,
                                  const files::DamageReport& report) {
  const std::vector<std::string> found = class_folders(folder, report);
  PictureFolder result{.files = {},
                       .labels = {},
                       .classes = classes.empty() ? found : classes,
                       .name = folder.string()};
  std::vector<int64_t> labels;
  for (const std::string& name : found) {
    const auto label = class_of(folder, name, result.classes, report);
    if (!label) continue;
    for (fs::path& file : pictures_below(folder / name, result.others, report)) {
      result.files.push_back(std::move(file));
      labels.push_back(*label);
    }
  }
  std::ranges::sort(result.others);
  result.labels = at::tensor(labels, at::kLong);
  return result;
}

std::string note_on_others(const PictureFolder& folder) {
  constexpr std::size_t kShown = 3;
  if (folder.others.empty()) return "";
  std::vector<std::string> shown;
  for (const fs::path& file :
       std::span(folder.others).first(std::min(kShown, folder.others.size())))
    shown.push_back(file.string());
  const std::size_t more = folder.others.size() - shown.size();
  return fmt::format("{} files in {} are not .jpg, .jpeg or .png, and left out: {}{}",
                     folder.others.size(), folder.name, fmt::join(shown, ", "),
                     more > 0 ? fmt::format(" and {} more", more) : "");
}

PictureFolders find_picture_folders(const fs::path& folder, const files::DamageReport& report) {
  std::error_code unreadable;
  const bool parts = fs::is_directory(folder / "train", unreadable);
  std::vector<std::string> named = named_as_parts(folder);
  std::erase(named, "train");
  if (!named.empty() && !(parts && test_folder(folder))) refuse_parts(folder, named, report);
  PictureFolders result{.train = read_picture_folder(parts ? folder / "train" : folder, {}, report),
                        .test = {}};
  require_two_classes(parts ? folder / "train" : folder, result.train, report);
  if (const auto place = test_folder(folder); parts && place)
    result.test = read_picture_folder(*place, result.train.classes, report);
  return result;
}

std::optional<PictureFolder> find_test_pictures(const fs::path& folder,
                                                const std::vector<std::string>& classes) {
  std::error_code unreadable;
  if (!fs::is_directory(folder, unreadable))
    files::report_damage({.where = "data.find_test_pictures",
                          .file = folder,
                          .what = "there is no such folder",
                          .found = unreadable ? unreadable.message() : "no folder",
                          .expected = "test pictures in FOLDER/val/class/name.jpg",
                          .advice = "--data-dir names the folder above val"});
  const auto place = test_folder(folder);
  const auto is_beside = [&](const std::string& name) {
    return fs::is_directory(folder / name, unreadable);
  };
  if (place && !is_beside("train") && std::ranges::any_of(classes, is_beside))
    refuse_parts(folder, {place->filename().string()}, files::report_damage);
  return place ? std::optional(read_picture_folder(*place, classes)) : std::nullopt;
}

}  // namespace demi::data
