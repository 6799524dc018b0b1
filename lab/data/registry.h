#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "demi/core/export.h"
#include "lab/data/image_set.h"
#include "lab/data/text_set.h"

namespace demi::data {

/// What the files of a set are like.
enum class Layout { mnist, cifar10, cifar100, imdb };

struct Download {
  std::string url;
  std::string file;  // the name that it gets
  std::string md5;
};

/// A data set that demi knows by name.
struct DataSet {
  std::string name;
  std::string title;  // one line for people
  Layout layout;
  int64_t train_examples, test_examples;
  std::vector<std::string>
      subfolders;  // where it may lie below a data folder; the first is where it is put
  std::vector<std::string> marks;  // any of these files or folders tells the place apart
  std::vector<std::string> classes;
  std::vector<double> mean, std;  // of the training pictures' channels in [0, 1]; empty for texts
  std::vector<Download> downloads;
  bool unpacks;        // the download is an archive
  std::string advice;  // how to get it
};

DEMI_API std::span<const DataSet> data_sets();

/// The set of that name. Throws UsageError with the nearest right name.
DEMI_API const DataSet& data_set(std::string_view name);

/// The folder in which a set lies (see places()). Throws DataError that says where it was looked
/// for and how to get it.
DEMI_API std::filesystem::path find_data_set(std::string_view name,
                                             const std::filesystem::path& data_dir = {});

/// Reads one split of a set of pictures. Throws UsageError (also for a set of texts), DataError.
DEMI_API ImageSet load_images(std::string_view name, Split split,
                              const std::filesystem::path& data_dir = {});

/// Reads and tokenizes a set of texts; the result is kept in cache_folder()/texts and read from
/// there the next time. Throws UsageError (also for a set of pictures), DataError.
DEMI_API TextCorpus load_texts(std::string_view name, const std::filesystem::path& data_dir = {});

/// The same for two CSV or TSV files with label and text (csv_texts.h), without a cache.
DEMI_API TextCorpus load_text_files(const std::filesystem::path& train,
                                    const std::filesystem::path& test);

}  // namespace demi::data
