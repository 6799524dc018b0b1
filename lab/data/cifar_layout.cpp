#include "lab/data/cifar_layout.h"

namespace demi::data {
namespace {

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
