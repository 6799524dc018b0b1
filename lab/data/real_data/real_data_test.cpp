// The complete CIFAR-10 and IMDB against their published figures. Skips where the archives are not
// at hand.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "demi/core/source_dir_testing.h"
#include "lab/data/cifar_testing.h"
#include "lab/data/get.h"
#include "lab/data/registry.h"
#include "lab/files/archive.h"
#include "lab/files/folder_testing.h"
#include "lab/files/md5.h"

namespace demi::data {
namespace {

using files::complaint;
using files::contents;
namespace fs = std::filesystem;

fs::path archive(const char* name) {
  const char* given = std::getenv("DEMI_TEST_DATA");
  return (given != nullptr ? fs::path(given) : source_dir() / "../shared/data") / name;
}

#define NEEDS(path)      \
  if (!fs::exists(path)) \
  GTEST_SKIP() << (path) << " is not here; DEMI_TEST_DATA names another folder"

// Unpacked once for all tests, since xz takes seconds.
class RealCifar : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!fs::exists(packed_)) return;
    files_ = std::make_unique<TestFolder>();
    files::unpack(packed_, *files_ / "set");
  }
  static void TearDownTestSuite() { files_.reset(); }

  static std::string content_of(const std::string& name) {
    for (const auto& entry : fs::recursive_directory_iterator(files_->path()))
      if (entry.path().filename() == name) return contents(entry.path());
    return "";
  }

  inline static const fs::path packed_ = archive("cifar-10-batches-bin.tar.xz");
  inline static std::unique_ptr<TestFolder> files_;
};

TEST_F(RealCifar, IsTheOneOfItsAuthors) {
  NEEDS(packed_);
  const ImageSet train = load_images("cifar10", Split::train, packed_.parent_path());
  const ImageSet test = load_images("cifar10", Split::test, files_->path() / "set");
  EXPECT_EQ(train.images.sizes(), (std::vector<int64_t>{50000, 3, 32, 32}));
  EXPECT_TRUE(at::equal(at::bincount(train.labels), at::full({10}, 5000, at::kLong)));
  EXPECT_TRUE(at::equal(at::bincount(test.labels), at::full({10}, 1000, at::kLong)));
  // The mean that the field uses; its usual std (0.2023 ...) is the mean of single pictures' std.
  const at::Tensor pixels = train.images.to(at::kFloat).div_(255);
  const at::Tensor mean = pixels.mean({0, 2, 3}), of_pictures = pixels.std({2, 3}).mean(0);
  const DataSet& set = data_set("cifar10");
  for (std::size_t c = 0; c < 3; ++c) {
    const auto channel = static_cast<int64_t>(c);
    EXPECT_NEAR(mean[channel].item<double>(), set.mean[c], 1e-4);
    EXPECT_NEAR(of_pictures[channel].item<double>(), set.std[c], 1e-4);
  }
}

TEST_F(RealCifar, FilesHaveThePublishedSums) {
  NEEDS(packed_);
  EXPECT_EQ(files::md5(content_of("data_batch_1.bin")), "5dd7e06a14cb22eb9f671a540d1b7c25");
  EXPECT_EQ(files::md5(content_of("test_batch.bin")), "803d5f7f4d78ea53de84dbe85f74fb6d");
}

// The short form is Archive.RefusesEverySingleFlippedBit.
TEST_F(RealCifar, FlippedBitsOfTheWholeSetAreRefused) {
  NEEDS(packed_);
  const TestFolder folder;
  const fs::path packed = folder / "cifar-10-batches-bin.tar.gz";
  cifar_testing::pack(files_->path(), packed, "");
  const auto bytes = fs::file_size(packed);
  EXPECT_EQ(load_images("cifar10", Split::test, folder.path()).labels.numel(), 10'000);
  int refused = 0;
  constexpr int kFlips = 30;
  for (int i = 0; i < kFlips; ++i) {
    const auto place = static_cast<std::streamoff>(10 + (bytes - 10) / kFlips * i + i);
    const auto flip = [&] {
      std::fstream file(packed, std::ios::binary | std::ios::in | std::ios::out);
      file.seekg(place);
      const int byte = file.get() ^ (1 << i % 8);
      file.seekp(place);
      file.put(static_cast<char>(byte));
    };
    flip();
    refused +=
        complaint([&] { load_images("cifar10", Split::test, folder.path()); }) != "no DataError";
    flip();
  }
  EXPECT_EQ(refused, kFlips);
}

TEST(RealData, ImdbHasTheKnownVocabulary) {
  const fs::path packed = archive("aclImdb.tar.xz");
  NEEDS(packed);
  const TestFolder folder;
  setenv("DEMI_CACHE", (folder / "cache").c_str(), 1);
  files::unpack(packed, folder / "imdb");
  const TextCorpus corpus = load_texts("imdb", folder.path());
  EXPECT_EQ(corpus.vocabulary->size(), 100'683);
  EXPECT_EQ(corpus.train.tokens.numel(), 6'767'187);
  const at::Tensor lengths = corpus.train.offsets.diff();
  EXPECT_EQ(lengths.median().item<int64_t>(), 202);
  EXPECT_EQ(lengths.max().item<int64_t>(), 2'752);
  EXPECT_TRUE(at::equal(at::bincount(corpus.train.labels), at::full({2}, 12'500, at::kLong)));

  const TextCorpus again = load_texts("imdb", folder.path());
  EXPECT_TRUE(at::equal(again.train.tokens, corpus.train.tokens));
  EXPECT_TRUE(std::ranges::equal(again.vocabulary->words(), corpus.vocabulary->words()));
  EXPECT_EQ(check_data_set("imdb", folder.path()).test_examples, 25'000);

  const TextCorpus as_it_lies = load_texts("imdb", packed.parent_path());
  EXPECT_TRUE(at::equal(as_it_lies.train.tokens, corpus.train.tokens));
  EXPECT_TRUE(at::equal(as_it_lies.test.tokens, corpus.test.tokens));
  unsetenv("DEMI_CACHE");
}

}  // namespace
}  // namespace demi::data
