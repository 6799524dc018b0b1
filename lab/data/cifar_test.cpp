#include "lab/data/cifar.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "demi/core/error.h"
#include "lab/data/cifar_testing.h"
#include "lab/data/registry.h"
#include "lab/files/folder_testing.h"

namespace demi::data {
namespace {

using files::complaint;
using testing::HasSubstr;
using namespace cifar_testing;

void expect_ten(const ImageSet& train) {
  ASSERT_EQ(train.images.sizes(), (std::vector<int64_t>{10, 3, 32, 32}));
  EXPECT_TRUE(at::equal(train.labels, at::tensor({1, 0, 2, 0, 3, 0, 4, 0, 5, 0}, at::kLong)));
  EXPECT_EQ(train.images[8][1][31][31].item<int>(), 2);
  EXPECT_EQ(train.images[9][2][0][0].item<int>(), 5);
  EXPECT_EQ(train.classes[3], "cat");
}

TEST(Cifar, ReadsTheFolder) {
  const TestFolder folder;
  write_ten(folder);
  expect_ten(read_cifar(folder.path(), Cifar::ten, Split::train));
  EXPECT_EQ(read_cifar(folder.path(), Cifar::ten, Split::test).labels.item<int64_t>(), 9);
  expect_ten(load_images("cifar10", Split::train, folder.path()));
}

TEST(Cifar, ReadsTheArchive) {
  const TestFolder files, folder;
  write_ten(files);
  pack(files.path(), folder / "cifar-10-binary.tar.gz", "cifar-10-batches-bin/");
  expect_ten(read_cifar(folder / "cifar-10-binary.tar.gz", Cifar::ten, Split::train));
  expect_ten(load_images("cifar10", Split::train, folder.path()));
}

TEST(Cifar, TakesTheFineLabelOfCifar100) {
  const TestFolder folder;
  folder.write("train.bin", record({19, 99}, 1, 2, 3));
  folder.write("test.bin", record({0, 5}, 1, 2, 3));
  const ImageSet train = load_images("cifar100", Split::train, folder.path());
  EXPECT_EQ(train.labels.item<int64_t>(), 99);
  EXPECT_EQ(train.images[0][0][0][0].item<int>(), 1);
  EXPECT_EQ(train.classes.size(), 100U);
}

TEST(Cifar, RecognisesThePythonVersion) {
  const TestFolder folder, packed;
  folder.write("data_batch_1", "\x80\x02}q\x01");
  EXPECT_THAT(
      complaint([&] { load_images("cifar10", Split::train, folder.path()); }),
      testing::AllOf(HasSubstr("Python (pickle) version"), HasSubstr("demi data get cifar10")));
  pack(folder.path(), packed / "cifar-10-binary.tar.gz", "cifar-10-batches-py/");
  EXPECT_THAT(complaint([&] { load_images("cifar10", Split::train, packed.path()); }),
              HasSubstr("pickle"));
  TestFolder renamed;
  write_ten(renamed);
  renamed.write("data_batch_2.bin", "\x80\x02}q\x01");
  EXPECT_THAT(complaint([&] { load_images("cifar10", Split::train, renamed.path()); }),
              HasSubstr("data_batch_2.bin: this is the Python"));
}

TEST(Cifar, SaysWhatIsWrong) {
  const TestFolder folder;
  write_ten(folder);
  const auto said = [&](const std::string& content) {
    folder.write("data_batch_3.bin", content);
    return complaint([&] { read_cifar(folder.path(), Cifar::ten, Split::train); });
  };
  EXPECT_THAT(
      said(record({1}, 1, 1, 1) + "x"),
      HasSubstr("data_batch_3.bin, offset 3073: the file's size is wrong; seen: 3074 bytes"));
  EXPECT_THAT(said(""), HasSubstr("seen: 0 bytes"));
  EXPECT_THAT(said(record({1}, 1, 1, 1) + record({10}, 1, 1, 1)),
              HasSubstr("offset 3073: a label is out of range; seen: 10; accepted: 0 to 9"));
  std::filesystem::remove(folder / "data_batch_3.bin");
  EXPECT_THAT(complaint([&] { read_cifar(folder.path(), Cifar::ten, Split::train); }),
              HasSubstr("cannot be opened"));
  const TestFolder empty;
  EXPECT_THAT(complaint([&] { read_cifar(empty.path(), Cifar::ten, Split::train); }),
              HasSubstr("cannot be opened"));
}

}  // namespace
}  // namespace demi::data
