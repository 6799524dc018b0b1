#include "lab/data/cifar.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <utility>

#include "lab/files/archive.h"
#include "lab/files/damage.h"
#include "lab/open_text.h"

namespace demi::data {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kReadCifar = "data.read_cifar";

/// Content by file name.
using Files = std::map<std::string, std::string>;

[[noreturn]] void refuse_pickle(const fs::path& file, const CifarLayout& layout) {
  const std::string advice = "get the binary version: demi data get " + layout.name;
  files::report_damage({.where = kReadCifar,
                        .file = file,
                        .what = "this is the Python (pickle) version of CIFAR",
                        .found = "pickled Python objects",
                        .expected = "the binary version: " + layout.train_files[0] + " and so on",
                        .advice = advice});
}

Files read_folder(const fs::path& folder, const std::vector<std::string>& names) {
  Files files;
  for (const std::string& name : names) {
    std::ifstream in(folder / name, std::ios::binary);
    if (!fs::is_regular_file(folder / name) || !in)
      files::report_damage({.where = kReadCifar,
                            .file = folder / name,
                            .what = "cannot be opened",
                            .found = "no such file or no permission",
                            .expected = "a file of the binary version"});
    std::optional<std::string> bytes = lab::rest_of(in);
    if (!bytes)
      files::report_damage({.where = kReadCifar,
                            .file = folder / name,
                            .what = "cannot be read",
                            .found = std::strerror(errno),
                            .expected = "a file of the binary version"});
    files[name] = *std::move(bytes);
  }
  return files;
}

Files read_archive(const fs::path& archive, Split split, const CifarLayout& layout) {
  const bool train = split == Split::train;
  const auto& names = train ? layout.train_files : layout.test_files;
  const int64_t records = train ? layout.train_records : layout.test_records;
  Files files =
      files::read_members(archive, {names.begin(), names.end()},
                          static_cast<uint64_t>(records * (layout.label_bytes + kCifarPixels)));
  for (const std::string& name : names) {
    if (files.contains(name)) continue;
    if (!files::members_among(archive, {layout.pickles.begin(), layout.pickles.end()}).empty())
      refuse_pickle(archive, layout);
    files::report_damage({.where = kReadCifar,
                          .file = archive,
                          .what = "the archive lacks a file",
                          .found = "no member " + name,
                          .expected = name});
  }
  return files;
}

Files read_files(const fs::path& place, Split split, const CifarLayout& layout) {
  const auto& names = split == Split::train ? layout.train_files : layout.test_files;
  if (!fs::is_directory(place)) return read_archive(place, split, layout);
  if (const fs::path archive = cifar_archive(place, layout); !archive.empty())
    return read_archive(archive, split, layout);
  if (first_that_exists(place, layout.train_files).empty() &&
      first_that_exists(place, layout.test_files).empty()) {
    if (const fs::path pickle = first_that_exists(place, layout.pickles); !pickle.empty())
      refuse_pickle(pickle, layout);
  }
  return read_folder(place, names);
}

void check_size(const fs::path& file, const std::string& content, int64_t record,
                const CifarLayout& layout) {
  const auto size = static_cast<int64_t>(content.size());
  if (size > 0 && size % record == 0) return;
  if (content.starts_with("\x80\x02")) refuse_pickle(file, layout);
  files::report_damage(
      {.where = kReadCifar,
       .file = file,
       .what = "the file's size is wrong",
       .place = fmt::format("offset {}", size / record * record),
       .found = fmt::format("{} bytes", size),
       .expected = fmt::format("a multiple of {} (label and 3 x 32 x 32 pixels)", record)});
}

/// Appends the records of one file at `image` and `label`.
void copy_records(const fs::path& file, const std::string& bytes, const CifarLayout& layout,
                  uint8_t*& image, int64_t*& label) {
  const auto label_bytes = static_cast<std::size_t>(layout.label_bytes);
  for (std::size_t at = label_bytes - 1; at < bytes.size(); at += label_bytes + kCifarPixels) {
    *label = static_cast<unsigned char>(bytes[at]);
    if (*label >= static_cast<int64_t>(layout.classes.size()))
      files::report_damage({.where = kReadCifar,
                            .file = file,
                            .what = "a label is out of range",
                            .place = fmt::format("offset {}", at),
                            .found = fmt::to_string(*label),
                            .expected = fmt::format("0 to {}", layout.classes.size() - 1)});
    std::memcpy(image, bytes.data() + at + 1, kCifarPixels);
    image += kCifarPixels;
    ++label;
  }
}

const CifarLayout kTen{
    .name = "cifar10",
    .label_bytes = 1,
    .train_files = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
                    "data_batch_5.bin"},
    .test_files = {"test_batch.bin"},
    .train_records = 10'000,
    .test_records = 10'000,
    .archives = {"cifar-10-binary.tar.gz", "cifar-10-batches-bin.tar.gz",
                 "cifar-10-batches-bin.tar.xz"},
    .pickles = {"data_batch_1", "test_batch", "cifar-10-python.tar.gz", "cifar-10-batches-py"},
    .classes = {"airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship",
                "truck"}};

const CifarLayout kHundred{
    .name = "cifar100",
    .label_bytes = 2,
    .train_files = {"train.bin"},
    .test_files = {"test.bin"},
    .train_records = 50'000,
    .test_records = 10'000,
    .archives = {"cifar-100-binary.tar.gz", "cifar-100-binary.tar.xz"},
    .pickles = {"train", "test", "cifar-100-python.tar.gz", "cifar-100-python"},
    .classes = {
        "apple",       "aquarium_fish", "baby",      "bear",       "beaver",       "bed",
        "bee",         "beetle",        "bicycle",   "bottle",     "bowl",         "boy",
        "bridge",      "bus",           "butterfly", "camel",      "can",          "castle",
        "caterpillar", "cattle",        "chair",     "chimpanzee", "clock",        "cloud",
        "cockroach",   "couch",         "crab",      "crocodile",  "cup",          "dinosaur",
        "dolphin",     "elephant",      "flatfish",  "forest",     "fox",          "girl",
        "hamster",     "house",         "kangaroo",  "keyboard",   "lamp",         "lawn_mower",
        "leopard",     "lion",          "lizard",    "lobster",    "man",          "maple_tree",
        "motorcycle",  "mountain",      "mouse",     "mushroom",   "oak_tree",     "orange",
        "orchid",      "otter",         "palm_tree", "pear",       "pickup_truck", "pine_tree",
        "plain",       "plate",         "poppy",     "porcupine",  "possum",       "rabbit",
        "raccoon",     "ray",           "road",      "rocket",     "rose",         "sea",
        "seal",        "shark",         "shrew",     "skunk",      "skyscraper",   "snail",
        "snake",       "spider",        "squirrel",  "streetcar",  "sunflower",    "sweet_pepper",
        "table",       "tank",          "telephone", "television", "tiger",        "tractor",
        "train",       "trout",         "tulip",     "turtle",     "wardrobe",     "whale",
        "willow_tree", "wolf",          "woman",     "worm"}};

}  // namespace

ImageSet read_cifar(const fs::path& place, Cifar kind, Split split) {
  const CifarLayout& layout = cifar_layout(kind);
  const int64_t record = layout.label_bytes + kCifarPixels;
  const Files files = read_files(place, split, layout);
  int64_t total = 0;
  for (const auto& [name, content] : files) {
    check_size(place / name, content, record, layout);
    total += static_cast<int64_t>(content.size()) / record;
  }
  at::Tensor images = at::empty({total, 3, 32, 32}, at::kByte);
  at::Tensor labels = at::empty({total}, at::kLong);
  uint8_t* image = images.mutable_data_ptr<uint8_t>();
  int64_t* label = labels.mutable_data_ptr<int64_t>();
  for (const auto& [name, content] : files)
    copy_records(place / name, content, layout, image, label);
  return {.images = images,
          .labels = labels,
          .classes = layout.classes,
          .name = fmt::format("{} {}", layout.name, split == Split::train ? "train" : "test")};
}

std::filesystem::path first_that_exists(const std::filesystem::path& folder,
                                        const std::vector<std::string>& names) {
  for (const std::string& name : names)
    if (std::filesystem::exists(folder / name)) return folder / name;
  return {};
}

const CifarLayout& cifar_layout(Cifar kind) { return kind == Cifar::ten ? kTen : kHundred; }

std::filesystem::path cifar_archive(const std::filesystem::path& place, const CifarLayout& layout) {
  for (const auto* files : {&layout.train_files, &layout.test_files})
    if (!first_that_exists(place, *files).empty()) return {};
  return first_that_exists(place, layout.archives);
}

}  // namespace demi::data
