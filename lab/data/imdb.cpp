#include "lab/data/imdb.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "lab/data/cifar.h"
#include "lab/files/damage.h"
#include "lab/files/tar_reader.h"
#include "lab/open_text.h"

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
  std::optional<std::string> text;
  if (in) text = lab::rest_of(in);
  if (!text)
    files::report_damage({.where = "data.imdb",
                          .file = file,
                          .what = "cannot be read",
                          .found = std::strerror(errno),
                          .expected = "a review",
                          .advice =
                              "mend the link or the permissions, or get the set again: demi data "
                              "get imdb"});
  return *std::move(text);
}

/// A review that was found, and how it is read.
struct Review {
  int64_t number;
  TextSource source;
};

int64_t require_review_number(const fs::path& place) {
  const int64_t number = review_number(place.filename().string());
  if (number < 0)
    files::report_damage({.where = "data.imdb",
                          .file = place,
                          .what = "not the name of a review",
                          .found = place.filename().string(),
                          .expected = "17.txt or 17_9.txt",
                          .advice = "take the file out of the folder"});
  return number;
}

std::vector<Review> reviews_in(const fs::path& folder, int64_t label, std::error_code& code) {
  std::vector<Review> found;
  for (fs::directory_iterator it(folder, code), end; !code && it != end; it.increment(code))
    found.push_back({require_review_number(it->path()),
                     {.read = [file = it->path()] { return read_review(file); },
                      .label = label,
                      .place = it->path().string()}});
  return found;
}

/// The sources by their numbers, of the folder or the part of an archive that `place` names.
void add_sources(std::vector<TextSource>& sources, std::vector<Review> found, const fs::path& place,
                 const std::error_code& code) {
  if (found.empty())
    files::report_damage({.where = "data.imdb",
                          .file = place,
                          .what = "there are no reviews",
                          .found = code ? code.message() : "no file there",
                          .expected = "files 0.txt, 1.txt ... or 0_9.txt ...",
                          .advice = "get the set again: demi data get imdb"});
  std::ranges::sort(found, {}, [](const Review& review) {
    return std::pair(review.number, std::string_view(review.source.place));
  });
  for (Review& review : found) sources.push_back(std::move(review.source));
}

constexpr const char* kSplits[] = {"train", "test"};

/// The reviews by the name of their folder, "train/neg".
std::map<std::string, std::vector<Review>> reviews_of_archive(const fs::path& archive) {
  std::map<std::string, std::vector<Review>> found;
  for (const char* split : kSplits)
    for (const std::string& name : imdb_classes()) found[fs::path(split) / name];
  files::TarReader reader(archive);
  while (archive_entry* entry = reader.next()) {
    const fs::path member = archive_entry_pathname(entry), folder = member.parent_path();
    const std::string part = folder.parent_path().filename() / folder.filename();
    if (archive_entry_filetype(entry) != AE_IFREG || !found.contains(part)) continue;
    const fs::path place = archive / member;
    const int64_t number = require_review_number(place);
    std::string text;
    reader.content([&](const void* block, std::size_t bytes) {
      text.append(static_cast<const char*>(block), bytes);
    });
    found[part].push_back({number,
                           {.read = [text = std::move(text)] { return text; },
                            .label = folder.filename() == imdb_classes()[1] ? 1 : 0,
                            .place = place.string()}});
  }
  return found;
}

}  // namespace

const std::vector<std::string>& imdb_classes() {
  static const std::vector<std::string> classes{"neg", "pos"};
  return classes;
}

const std::vector<std::string>& imdb_archives() {
  static const std::vector<std::string> archives{"aclImdb_v1.tar.gz", "aclImdb.tar.gz",
                                                 "aclImdb.tar.xz"};
  return archives;
}

fs::path imdb_archive(const fs::path& folder) {
  if (!first_that_exists(folder, {"train/neg", "train/pos", "test/neg", "test/pos"}).empty())
    return {};
  return first_that_exists(folder, imdb_archives());
}

namespace {

ImdbReviews reviews_of(const fs::path& folder, std::span<const char* const> splits) {
  const fs::path archive = imdb_archive(folder);
  auto packed =
      archive.empty() ? std::map<std::string, std::vector<Review>>() : reviews_of_archive(archive);
  ImdbReviews all;
  for (const std::string split : splits)
    for (std::size_t label = 0; label < imdb_classes().size(); ++label) {
      const fs::path part = fs::path(split) / imdb_classes()[label];
      const fs::path place = (archive.empty() ? folder : archive) / part;
      std::error_code code;
      add_sources(split == "train" ? all.train : all.test,
                  archive.empty() ? reviews_in(place, static_cast<int64_t>(label), code)
                                  : std::move(packed[part]),
                  place, code);
    }
  return all;
}

}  // namespace

ImdbReviews imdb_reviews(const fs::path& folder) { return reviews_of(folder, kSplits); }

std::vector<TextSource> imdb_test_reviews(const fs::path& folder) {
  return reviews_of(folder, std::span(kSplits).subspan(1)).test;
}

}  // namespace demi::data
