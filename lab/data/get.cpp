#include "lab/data/get.h"

#include <fmt/format.h>

#include "demi/core/error.h"
#include "lab/data/cifar.h"
#include "lab/data/imdb.h"
#include "lab/data/locate.h"
#include "lab/data/registry.h"
#include "lab/data/token_set.h"
#include "lab/files/archive.h"
#include "lab/files/fetch.h"
#include "lab/files/md5.h"

namespace demi::data {
namespace {

namespace fs = std::filesystem;

fs::path target_folder(const fs::path& data_dir) {
  if (!data_dir.empty()) return data_dir;
  const fs::path given = data_dir_of_environment();
  return given.empty() ? cache_folder() / "data" : given;
}

void make_folder(const fs::path& folder) {
  std::error_code code;
  fs::create_directories(folder, code);
  if (code)
    throw TrainingError(
        {.where = "data.get_data_set",
         .what = folder.string() + " cannot be made",
         .seen = code.message(),
         .advice = "choose a folder that you may write to: --data-dir or DEMI_DATA_DIR"});
}

/// The archive that is read there instead of unpacked files, or "".
fs::path archive_of(const DataSet& set, const fs::path& folder) {
  switch (set.layout) {
    case Layout::cifar10:
      return cifar_archive(folder, cifar_layout(Cifar::ten));
    case Layout::cifar100:
      return cifar_archive(folder, cifar_layout(Cifar::hundred));
    case Layout::imdb:
      return imdb_archive(folder);
    default:
      return {};
  }
}

/// An archive of the published name is the published archive, byte for byte: gzip's header is under
/// no checksum of its own.
void check_published_sum(const DataSet& set, const fs::path& folder) {
  const fs::path archive = archive_of(set, folder);
  for (const Download& download : set.downloads) {
    if (archive.filename() != download.file) continue;
    if (const std::string found = files::md5_of_file(archive); found != download.md5)
      throw DataError({.where = "data.check_data_set",
                       .what = archive.string() + " is not the archive that is published",
                       .seen = "MD5 " + found,
                       .accepted = "MD5 " + download.md5,
                       .advice = "it is damaged, or packed again: remove it and " + set.advice +
                                 ", or give an archive of yours another name"});
  }
}

/// A folder that is there is not fetched again: it may be of the user's making.
void require_whole(const DataSet& set, const fs::path& root, const fs::path& folder) {
  try {
    check_data_set(set.name, root);
  } catch (const DataError& error) {
    throw DataError({.where = "data.get_data_set",
                     .what = folder.string() + " is there and is not the whole set",
                     .seen = error.what(),
                     .accepted = "the set as it is published, or no such folder",
                     .advice = fmt::format("move it away (mv {0} {0}.old), and run this again",
                                           folder.string())});
  }
}

}  // namespace

fs::path get_data_set(std::string_view name, const fs::path& data_dir,
                      const GetProgress& progress) {
  const DataSet& set = published_set(name);
  const fs::path root = target_folder(data_dir);
  const fs::path folder = root / set.subfolders.front();
  if (set.unpacks && fs::exists(folder)) {
    require_whole(set, root, folder);
    return find_data_set(name, root);
  }
  make_folder(set.unpacks ? root : folder);
  for (const Download& download : set.downloads) {
    const fs::path file = (set.unpacks ? root : folder) / download.file;
    if (!fs::exists(file) || files::md5_of_file(file) != download.md5)
      files::fetch(download.url, file, download.md5, [&](int64_t have, int64_t total) {
        if (progress) progress(download.file, have, total);
      });
    if (!set.unpacks) continue;
    try {
      files::unpack(file, folder);
    } catch (...) {
      if (!fs::exists(folder)) throw;  // another process has unpacked it
    }
    fs::remove(file);
  }
  return find_data_set(name, root);
}

DataCheck check_data_set(std::string_view name, const fs::path& data_dir) {
  const DataSet& set = published_set(name);
  DataCheck check{
      .name = set.name, .folder = find_data_set(name, data_dir), .classes = set.classes};
  check_published_sum(set, check.folder);
  if (set.kind == Kind::texts) {
    const TextCorpus corpus = load_texts(name, data_dir);
    check.train_examples = corpus.train.size();
    check.test_examples = corpus.test.size();
  } else if (set.kind == Kind::tokens) {
    const TokenSet tokens = load_token_text(name, data_dir, "characters");
    check.train_examples = tokens.train.size;
    check.test_examples = tokens.test.size;
  } else {
    check.train_examples = load_images(name, Split::train, data_dir).labels.size(0);
    check.test_examples = load_images(name, Split::test, data_dir).labels.size(0);
  }
  if (check.train_examples != set.train_examples || check.test_examples != set.test_examples)
    throw DataError({.where = "data.check_data_set",
                     .what = fmt::format("{} is not the whole set", check.folder.string()),
                     .seen = fmt::format("{} training and {} test examples", check.train_examples,
                                         check.test_examples),
                     .accepted = fmt::format("{} and {}", set.train_examples, set.test_examples),
                     .advice = set.advice});
  return check;
}

}  // namespace demi::data
