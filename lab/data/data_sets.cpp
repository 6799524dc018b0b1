#include "lab/data/data_sets.h"

#include <fmt/format.h>

#include "lab/data/cifar.h"
#include "lab/data/imdb.h"
#include "lab/find_by_name.h"

namespace demi::data {
namespace {

constexpr const char* kMnistFiles[] = {"train-images", "train-labels", "t10k-images",
                                       "t10k-labels"};

std::string rank_of(std::string_view stem) { return stem.ends_with("images") ? "idx3" : "idx1"; }

std::vector<std::string> mnist_marks() {
  std::vector<std::string> marks;
  for (const char* stem : kMnistFiles)
    for (const char* joint : {"-", "."})
      for (const char* ending : {"", ".gz"})
        marks.push_back(fmt::format("{}{}{}-ubyte{}", stem, joint, rank_of(stem), ending));
  return marks;
}

/// The four files below `base`, with the sums of train-images, train-labels, t10k-images,
/// t10k-labels.
std::vector<Download> mnist_downloads(std::string_view base, const char* const (&sums)[4]) {
  std::vector<Download> downloads;
  for (std::size_t i = 0; i < 4; ++i) {
    const std::string file = fmt::format("{}-{}-ubyte.gz", kMnistFiles[i], rank_of(kMnistFiles[i]));
    downloads.push_back({fmt::format("{}{}", base, file), file, sums[i]});
  }
  return downloads;
}

std::vector<std::string> cifar_marks(Cifar kind) {
  const CifarLayout& layout = cifar_layout(kind);
  std::vector<std::string> marks = layout.train_files;
  for (const auto* more : {&layout.test_files, &layout.archives})
    marks.insert(marks.end(), more->begin(), more->end());
  return marks;
}

DataSet fashion_mnist() {
  return {
      .name = "fashion-mnist",
      .title = "70,000 pictures of clothes, 28 x 28 grey, 10 classes (Xiao, Rasul, Vollgraf 2017)",
      .kind = Kind::pictures,
      .layout = Layout::mnist,
      .train_examples = 60'000,
      .test_examples = 10'000,
      .subfolders = {"fashion-mnist", "FashionMNIST/raw"},
      .marks = mnist_marks(),
      .classes = {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt",
                  "Sneaker", "Bag", "Ankle boot"},
      .mean = {0.2860},
      .std = {0.3530},
      .downloads =
          mnist_downloads("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                          {"8d4fb7e6c68d591d4c3dfef9ec88bf0d", "25c81989df183df01b3e8a0aad5dffbe",
                           "bef4ecab320f06d8554ea6380940ec79", "bb300cfdad3c16e7a12a480ee83cd310"}),
      .unpacks = false,
      .advice =
          "install Debian's package dataset-fashion-mnist, or run `demi data get fashion-mnist`"};
}

DataSet mnist() {
  return {.name = "mnist",
          .title = "70,000 hand-written digits, 28 x 28 grey, 10 classes (LeCun, Cortes, Burges)",
          .kind = Kind::pictures,
          .layout = Layout::mnist,
          .train_examples = 60'000,
          .test_examples = 10'000,
          .subfolders = {"mnist", "MNIST/raw"},
          .marks = mnist_marks(),
          .classes = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"},
          .mean = {0.1307},
          .std = {0.3081},
          .downloads = mnist_downloads(
              "https://ossci-datasets.s3.amazonaws.com/mnist/",
              {"f68b3c2dcbeaaa9fbdd348bbdeb94873", "d53e105ee54ea40749a09fcbcd1e9432",
               "9fb629c4189551a2d022fa330f9573f3", "ec29112dd5afa0611ce80d1b7f02629c"}),
          .unpacks = false,
          .advice = "run `demi data get mnist`"};
}

DataSet cifar10() {
  return {.name = "cifar10",
          .title = "60,000 photographs, 32 x 32 RGB, 10 classes (Krizhevsky 2009)",
          .kind = Kind::pictures,
          .layout = Layout::cifar10,
          .train_examples = 50'000,
          .test_examples = 10'000,
          .subfolders = {"cifar10", "cifar10/cifar-10-batches-bin", "cifar-10-batches-bin"},
          .marks = cifar_marks(Cifar::ten),
          .classes = cifar_layout(Cifar::ten).classes,
          .mean = {0.4914, 0.4822, 0.4465},
          .std = {0.2023, 0.1994, 0.2010},
          .downloads = {{"https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                         "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"}},
          .unpacks = true,
          .advice = "run `demi data get cifar10`"};
}

DataSet cifar100() {
  return {.name = "cifar100",
          .title = "60,000 photographs, 32 x 32 RGB, 100 classes (Krizhevsky 2009)",
          .kind = Kind::pictures,
          .layout = Layout::cifar100,
          .train_examples = 50'000,
          .test_examples = 10'000,
          .subfolders = {"cifar100", "cifar100/cifar-100-binary", "cifar-100-binary"},
          .marks = cifar_marks(Cifar::hundred),
          .classes = cifar_layout(Cifar::hundred).classes,
          .mean = {0.5071, 0.4865, 0.4409},
          .std = {0.2673, 0.2564, 0.2762},
          .downloads = {{"https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
                         "cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"}},
          .unpacks = true,
          .advice = "run `demi data get cifar100`"};
}

std::vector<std::string> imdb_marks() {
  std::vector<std::string> marks{"train/pos", "train/neg", "test/pos", "test/neg"};
  marks.insert(marks.end(), imdb_archives().begin(), imdb_archives().end());
  return marks;
}

DataSet imdb() {
  return {.name = "imdb",
          .title = "50,000 film reviews, positive or negative (Maas et al. 2011)",
          .kind = Kind::texts,
          .layout = Layout::imdb,
          .train_examples = 25'000,
          .test_examples = 25'000,
          .subfolders = {"imdb", "imdb/aclImdb", "aclImdb"},
          .marks = imdb_marks(),
          .classes = imdb_classes(),
          .mean = {},
          .std = {},
          .downloads = {{"https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
                         "aclImdb_v1.tar.gz", "7c2ac02c03563afcf9b574c7e56c153a"}},
          .unpacks = true,
          .advice = "run `demi data get imdb`"};
}

DataSet shakespeare() {
  return {.name = "shakespeare",
          .title = "40,000 lines of Shakespeare's plays, 65 characters (Karpathy 2015)",
          .kind = Kind::tokens,
          .layout = Layout::text,
          .train_examples = 1'003'854,
          .test_examples = 111'540,
          .subfolders = {"shakespeare", "shakespeare_char", "tinyshakespeare"},
          .marks = {"tinyshakespeare.txt", "input.txt"},
          .classes = {},
          .mean = {},
          .std = {},
          .downloads = {{"https://raw.githubusercontent.com/karpathy/char-rnn/master/data/"
                         "tinyshakespeare/input.txt",
                         "tinyshakespeare.txt", "6fb458f1232090904fb40fe944165e91"}},
          .unpacks = false,
          .advice =
              "run `demi data get shakespeare`, or name a text of your own: --data text "
              "--train-file FILE"};
}

// Data without files of their own: made in memory, or the user's.
DataSet unpublished(std::string name, std::string title, Kind kind, Layout layout) {
  DataSet set;
  set.name = std::move(name);
  set.title = std::move(title);
  set.kind = kind;
  set.layout = layout;
  return set;
}

std::vector<DataSet> all_sets() {
  return {fashion_mnist(),
          mnist(),
          cifar10(),
          cifar100(),
          imdb(),
          shakespeare(),
          unpublished("csv", "texts with labels in two CSV or TSV files", Kind::texts, Layout::csv),
          unpublished("text", "a UTF-8 text, by characters, bytes or byte pairs", Kind::tokens,
                      Layout::text),
          unpublished("tokens", "token files of nanoGPT's or llm.c's forms", Kind::tokens,
                      Layout::tokens),
          unpublished("folder", "pictures in a folder for each class", Kind::pictures,
                      Layout::picture_folder),
          unpublished("synthetic-rows", "random rows", Kind::rows, Layout::synthetic),
          unpublished("synthetic-linear", "random rows and a linear function of them", Kind::rows,
                      Layout::synthetic),
          unpublished("synthetic-images", "random pictures", Kind::pictures, Layout::synthetic)};
}

}  // namespace

std::span<const DataSet> data_sets() {
  static const std::vector<DataSet> sets = all_sets();
  return sets;
}

const DataSet& data_set(std::string_view name) {
  return lab::find_by_name(data_sets(), name, "data.data_set", "no such data set");
}

}  // namespace demi::data
