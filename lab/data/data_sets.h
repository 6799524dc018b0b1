#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "demi/core/export.h"
#include "lab/data/kind.h"

namespace demi::data {

/// Origin of a set: made in memory, files or a folder of the user, or published files. `text` and
/// `tokens`: a running text, as it is written or by its numbers.
enum class Layout { synthetic, csv, text, tokens, picture_folder, mnist, cifar10, cifar100, imdb };

/// A file that is fetched.
struct Download {
  std::string url;   // where its authors offer it
  std::string file;  // the name that it gets
  std::string md5;   // checksum, 32 hexadecimal digits
};

/// A data set that demi knows by name. Members that a set lacks are empty.
struct DataSet {
  std::string name;                   // as `--data` names it
  std::string title;                  // one line for people
  Kind kind = Kind::rows;             // pictures, texts, tokens or rows
  Layout layout = Layout::synthetic;  // where it comes from, and how its files are laid out
  int64_t train_examples = 0, test_examples = 0;  // as published
  /// Places below a data folder; a fetched set goes to the first.
  std::vector<std::string> subfolders;
  std::vector<std::string> marks;    // any of these files or folders identifies the place
  std::vector<std::string> classes;  // names, by number
  /// Mean and standard deviation of the training pictures' channels in [0, 1]; empty for texts.
  /// CIFAR-10's std is that of the published recipes, the mean of the single pictures' std; that of
  /// all pixels is 0.2470, 0.2435, 0.2616.
  std::vector<double> mean, std;
  /// The files that `demi data get` fetches; empty: none.
  std::vector<Download> downloads;
  bool unpacks = false;  // the download is an archive
  std::string advice;    // how to get it

  /// Whether the set has published files, which are looked for and can be fetched.
  bool is_published() const { return !marks.empty(); }
};

/// All data sets, in the order in which `demi data list` shows them.
DEMI_API std::span<const DataSet> data_sets();

/// The set of that name. Throws UsageError with the nearest right name.
DEMI_API const DataSet& data_set(std::string_view name);

}  // namespace demi::data
