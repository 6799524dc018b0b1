#include "lab/data/imdb.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>

#include "lab/data/damage.h"

namespace demi::data {
namespace {

namespace fs = std::filesystem;

/// The number in 17.txt or 17_9.txt; -1: another name.
int64_t review_number(std::string_view name) {
  if (!name.ends_with(".txt")) return -1;
  name.remove_suffix(4);
  int64_t number = -1, rating = 0;
  auto [end, code] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (code == std::errc() && end != name.data() + name.size() && *end == '_') {
    const auto [last, rated] = std::from_chars(end + 1, name.data() + name.size(), rating);
    end = last;
    code = rated;
  }
  return code == std::errc() && end == name.data() + name.size() ? number : -1;
}

std::string read_review(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in)
    report_damage({.where = "data.imdb",
                   .file = file,
                   .what = "cannot be opened",
                   .found = std::strerror(errno),
                   .expected = "a review",
                   .advice = "mend the link or the permissions, or get the set again: demi data "
                             "get imdb"});
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<std::pair<int64_t, fs::path>> reviews(const fs::path& folder) {
  std::error_code code;
  std::vector<std::pair<int64_t, fs::path>> found;
  for (fs::directory_iterator it(folder, code), end; !code && it != end; it.increment(code)) {
    const int64_t number = review_number(it->path().filename().string());
    if (number < 0)
      report_damage({.where = "data.imdb",
                     .file = it->path(),
                     .what = "not the name of a review",
                     .found = it->path().filename().string(),
                     .expected = "17.txt or 17_9.txt",
                     .advice = "take the file out of the folder"});
    found.emplace_back(number, it->path());
  }
  if (found.empty())
    report_damage({.where = "data.imdb",
                   .file = folder,
                   .what = "there are no reviews",
                   .found = code ? code.message() : "an empty folder",
                   .expected = "files 0.txt, 1.txt ... or 0_9.txt ...",
                   .advice = "get the set again: demi data get imdb"});
  std::ranges::sort(found);
  return found;
}

}  // namespace

const std::vector<std::string>& imdb_classes() {
  static const std::vector<std::string> classes{"neg", "pos"};
  return classes;
}

std::vector<TextSource> imdb_sources(const fs::path& folder, Split split) {
  std::vector<TextSource> sources;
  for (std::size_t label = 0; label < imdb_classes().size(); ++label)
    for (const auto& [number, file] :
         reviews(folder / (split == Split::train ? "train" : "test") / imdb_classes()[label]))
      sources.push_back({.read = [file = file] { return read_review(file); },
                         .label = static_cast<int64_t>(label),
                         .place = file.string()});
  return sources;
}

}  // namespace demi::data
