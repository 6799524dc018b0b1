#include "demi/data/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "demi/core/error.h"
#include "demi/core/nearest.h"
#include "demi/data/idx.h"
#include "demi/data/locate.h"

namespace demi::data {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> mnist_marks() {
  std::vector<std::string> marks;
  for (const char* stem : {"train-images", "train-labels", "t10k-images", "t10k-labels"})
    for (const char* joint : {"-", "."})
      for (const char* ending : {"", ".gz"}) {
        const char* rank = std::string_view(stem).ends_with("images") ? "idx3" : "idx1";
        marks.push_back(fmt::format("{}{}{}-ubyte{}", stem, joint, rank, ending));
      }
  return marks;
}

}  // namespace

std::span<const DataSet> data_sets() {
  static const std::vector<DataSet> sets{
      {.name = "fashion-mnist",
       .title = "70,000 pictures of clothes, 28 x 28 grey, 10 classes (Xiao, Rasul, Vollgraf 2017)",
       .subfolders = {"fashion-mnist", "FashionMNIST/raw"},
       .marks = mnist_marks(),
       .classes = {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt",
                   "Sneaker", "Bag", "Ankle boot"},
       .mean = {0.2860},
       .std = {0.3530},
       .advice =
           "install Debian's package dataset-fashion-mnist, or run `demi data get fashion-mnist`"},
      {.name = "mnist",
       .title = "70,000 hand-written digits, 28 x 28 grey, 10 classes (LeCun, Cortes, Burges)",
       .subfolders = {"mnist", "MNIST/raw"},
       .marks = mnist_marks(),
       .classes = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"},
       .mean = {0.1307},
       .std = {0.3081},
       .advice = "run `demi data get mnist`"},
  };
  return sets;
}

const DataSet& data_set(std::string_view name) {
  std::vector<std::string> known;
  for (const DataSet& set : data_sets()) {
    if (set.name == name) return set;
    known.push_back(set.name);
  }
  throw UsageError({.where = "data.data_set",
                    .what = "no such data set",
                    .seen = name,
                    .advice = did_you_mean(name, known)});
}

fs::path find_data_set(std::string_view name, const fs::path& data_dir) {
  const DataSet& set = data_set(name);
  std::vector<std::string> looked;
  for (const fs::path& place : places(data_dir, set.subfolders)) {
    std::error_code unreadable;
    for (const std::string& mark : set.marks)
      if (fs::exists(place / mark, unreadable)) return place;
    looked.push_back(place.string());
  }
  throw DataError({.where = "data.find_data_set",
                   .what = fmt::format("{} is not on this machine", name),
                   .seen = fmt::format("none of its files in {}", fmt::join(looked, ", ")),
                   .accepted = fmt::format("{} and the like", set.marks.front()),
                   .advice = set.advice + "; another folder is named by --data-dir or DEMI_DATA"});
}

ImageSet load_images(std::string_view name, Split split, const fs::path& data_dir) {
  const DataSet& set = data_set(name);
  const fs::path folder = find_data_set(name, data_dir);
  return read_mnist_layout(folder, split, set.classes,
                           fmt::format("{} {}", name, split == Split::train ? "train" : "test"));
}

}  // namespace demi::data
