#include "lab/data/registry.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "demi/core/error.h"
#include "lab/data/locate.h"
#include "lab/files/folder_testing.h"

namespace demi::data {
namespace {

using testing::HasSubstr;

TEST(Registry, NamesTheNearestSet) {
  try {
    data_set("fashon-mnist");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("did you mean fashion-mnist?"));
  }
}

// Data that have no files of their own are in the same list.
TEST(Registry, MadeAndOwnDataAreKnownButNotLookedFor) {
  for (const char* name : {"csv", "folder", "synthetic-rows", "synthetic-images"}) {
    EXPECT_FALSE(data_set(name).is_published()) << name;
    EXPECT_THROW(find_data_set(name), UsageError) << name;
    EXPECT_THROW(load_images(name, Split::train), UsageError) << name;
    EXPECT_THROW(load_texts(name), UsageError) << name;
  }
  EXPECT_EQ(data_set("synthetic-rows").kind, Kind::rows);
  EXPECT_EQ(data_set("imdb").kind, Kind::texts);
  for (const DataSet& set : data_sets()) {
    EXPECT_EQ(set.is_published(), !set.downloads.empty()) << set.name;
    EXPECT_EQ(set.is_published(), set.train_examples > 0) << set.name;
  }
}

TEST(Registry, SaysHowToGetAMissingSet) {
  const TestFolder empty;
  try {
    load_images("fashion-mnist", Split::train, empty.path());
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr(empty.path().string()));
    EXPECT_THAT(error.what(), HasSubstr("dataset-fashion-mnist"));
    EXPECT_THAT(error.what(), HasSubstr("demi data get fashion-mnist"));
  }
}

TEST(Registry, FindsASetInTheFolderOrBelowIt) {
  for (const char* below : {"", "fashion-mnist/", "FashionMNIST/raw/"}) {
    const TestFolder folder;
    folder.write(std::string(below) + "t10k-labels-idx1-ubyte.gz", "");
    EXPECT_EQ(find_data_set("fashion-mnist", folder.path()) / "", folder / below) << below;
  }
}

// DEMI_DATA_DIR is --data-dir, in the library as in the program: there, and nowhere else.
TEST(Registry, LooksInTheEnvironmentsFolderAlone) {
  const TestFolder folder, other;
  folder.write("fashion-mnist/train-images-idx3-ubyte", "");
  ASSERT_EQ(setenv("DEMI_DATA_DIR", folder.path().c_str(), 1), 0);
  const std::vector<std::string> below{"here"};
  EXPECT_EQ(find_data_set("fashion-mnist"), folder / "fashion-mnist");
  EXPECT_EQ(places({}, below), places(folder.path(), below));
  EXPECT_EQ(places(other.path(), below).front(), other / "here") << "an argument is stronger";
  unsetenv("DEMI_DATA_DIR");
  EXPECT_EQ(places({}, below).back(), "/usr/share/datasets/here");
}

TEST(Registry, ReadsDebiansFashionMnist) {
  const char* folder = "/usr/share/datasets/fashion-mnist";
  if (!std::filesystem::exists(folder))
    GTEST_SKIP() << "Debian's package dataset-fashion-mnist is not installed";
  const ImageSet train = load_images("fashion-mnist", Split::train, folder);
  const ImageSet test = load_images("fashion-mnist", Split::test, folder);
  EXPECT_EQ(train.images.sizes(), (std::vector<int64_t>{60000, 1, 28, 28}));
  EXPECT_EQ(test.images.sizes(), (std::vector<int64_t>{10000, 1, 28, 28}));
  EXPECT_TRUE(at::equal(at::bincount(train.labels), at::full({10}, 6000, at::kLong)));
  const at::Tensor x = train.images.to(at::kFloat).div_(255);
  EXPECT_NEAR(x.mean().item<double>(), data_set("fashion-mnist").mean[0], 5e-5);
  EXPECT_NEAR(x.std().item<double>(), data_set("fashion-mnist").std[0], 5e-5);
}

}  // namespace
}  // namespace demi::data
