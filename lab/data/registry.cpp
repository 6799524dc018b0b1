#include "lab/data/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "demi/core/error.h"
#include "lab/data/cifar.h"
#include "lab/data/corpus_cache.h"
#include "lab/data/csv.h"
#include "lab/data/idx.h"
#include "lab/data/imdb.h"
#include "lab/data/locate.h"
#include "lab/files/md5.h"

namespace demi::data {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void wrong_kind(std::string_view where, std::string_view name,
                             std::string_view accepted) {
  refuse({.where = where,
          .what = "the data set is of another kind",
          .seen = name,
          .accepted = accepted});
}

/// The Python version of CIFAR does not mark a place. If nothing else is found, its place is read
/// nevertheless, and the error has advice.
bool holds_pickles(const DataSet& set, const fs::path& place) {
  if (set.layout != Layout::cifar10 && set.layout != Layout::cifar100) return false;
  std::error_code unreadable;
  for (const std::string& name :
       cifar_layout(set.layout == Layout::cifar10 ? Cifar::ten : Cifar::hundred).pickles)
    if (fs::exists(place / name, unreadable)) return true;
  return false;
}

/// The cache file of a folder of texts. Each folder has one, so that a changed folder's texts are
/// replaced.
fs::path corpus_cache(std::string_view name, const fs::path& folder) {
  std::error_code unreadable;
  const std::string path = fs::weakly_canonical(folder, unreadable).string();
  return cache_folder() / "texts" / fmt::format("{}-{}", name, files::md5(path).substr(0, 16));
}

}  // namespace

const DataSet& published_set(std::string_view name) {
  const DataSet& set = data_set(name);
  if (!set.is_published()) wrong_kind("data.published_set", name, "a published set");
  return set;
}

fs::path find_data_set(std::string_view name, const fs::path& data_dir) {
  const DataSet& set = published_set(name);
  const std::vector<fs::path> all = places(data_dir, set.subfolders);
  std::error_code unreadable;
  for (const fs::path& place : all)
    for (const std::string& mark : set.marks)
      if (fs::exists(place / mark, unreadable)) return place;
  for (const fs::path& place : all)
    if (holds_pickles(set, place)) return place;
  std::vector<std::string> looked;
  for (const fs::path& place : all) looked.push_back(place.string());
  throw DataError(
      {.where = "data.find_data_set",
       .what = fmt::format("{} is not on this machine", name),
       .seen = fmt::format("none of its files in {}", fmt::join(looked, ", ")),
       .accepted = fmt::format("{} and the like", set.marks.front()),
       .advice = set.advice + "; another folder is named by --data-dir or DEMI_DATA_DIR"});
}

ImageSet load_images(std::string_view name, Split split, const fs::path& data_dir) {
  const DataSet& set = published_set(name);
  if (set.kind != Kind::pictures) wrong_kind("data.load_images", name, "a set of pictures");
  const fs::path folder = find_data_set(name, data_dir);
  if (set.layout == Layout::cifar10) return read_cifar(folder, Cifar::ten, split);
  if (set.layout == Layout::cifar100) return read_cifar(folder, Cifar::hundred, split);
  return read_mnist_layout(folder, split, set.classes,
                           fmt::format("{} {}", name, split == Split::train ? "train" : "test"));
}

TextCorpus load_texts(std::string_view name, const fs::path& data_dir) {
  const DataSet& set = published_set(name);
  if (set.kind != Kind::texts) wrong_kind("data.load_texts", name, "a set of texts: imdb");
  const fs::path folder = find_data_set(name, data_dir);
  std::vector<std::string> parts{"train/neg", "train/pos", "test/neg", "test/pos"};
  if (const fs::path archive = imdb_archive(folder); !archive.empty())
    parts = {archive.filename().string()};
  // Before the files are listed and read: a change that comes later makes another fingerprint.
  const uint64_t version = fingerprint(folder, parts);
  const fs::path cache = corpus_cache(name, folder);
  if (auto cached = read_corpus(cache, version)) return std::move(*cached);
  const ImdbReviews reviews = imdb_reviews(folder);
  TextCorpus corpus = tokenize(reviews.train, reviews.test, imdb_classes(), std::string(name));
  try {
    fs::create_directories(cache.parent_path());
    write_corpus(cache, corpus, version);
  } catch (const std::exception& error) {
    corpus.note =
        fmt::format("the tokenized texts could not be kept for the next run: {}", error.what());
  }
  return corpus;
}

TextSet load_test_texts(std::string_view name, const fs::path& data_dir,
                        const Vocabulary& vocabulary) {
  const DataSet& set = published_set(name);
  if (set.kind != Kind::texts) wrong_kind("data.load_test_texts", name, "a set of texts: imdb");
  const fs::path folder = find_data_set(name, data_dir);
  std::error_code unreadable;
  const bool is_whole =
      !imdb_archive(folder).empty() || fs::is_directory(folder / "train", unreadable);
  if (is_whole) {
    TextCorpus corpus = load_texts(name, data_dir);
    if (has_all_words(*corpus.vocabulary, vocabulary))
      return renumbered(std::move(corpus.test), *corpus.vocabulary, vocabulary);
  }
  return tokenize(imdb_test_reviews(folder), vocabulary, fmt::format("{} test", name));
}

TextSet load_test_text_file(const fs::path& test, const std::vector<std::string>& classes,
                            const Vocabulary& vocabulary) {
  return tokenize(read_labelled_texts(test, classes).sources, vocabulary,
                  test.stem().string() + " test");
}

TextCorpus load_text_files(const fs::path& train, const fs::path& test) {
  const LabelledTexts first = read_labelled_texts(train);
  const LabelledTexts second = read_labelled_texts(test, first.classes);
  return tokenize(first.sources, second.sources, first.classes, train.stem().string());
}

}  // namespace demi::data
