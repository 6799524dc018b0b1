#include "demi/data/cifar.h"

#include <ATen/ATen.h>
#include <archive.h>
#include <archive_entry.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "demi/core/error.h"
#include "demi/data/archive.h"
#include "demi/data/registry.h"
#include "demi/data/test_folder.h"

namespace demi::data {
namespace {

using testing::HasSubstr;

/// A record of the binary version: labels, then the planes red, green, blue of 1024 bytes each.
std::string record(std::initializer_list<int> labels, char red, char green, char blue) {
  std::string text;
  for (int label : labels) text.push_back(static_cast<char>(label));
  return text + std::string(1024, red) + std::string(1024, green) + std::string(1024, blue);
}

void write_ten(const TestFolder& folder) {
  for (int batch = 1; batch <= 5; ++batch)
    folder.write("data_batch_" + std::to_string(batch) + ".bin",
                 record({batch}, 1, 2, 3) + record({0}, 4, 5, static_cast<char>(batch)));
  folder.write("test_batch.bin", record({9}, 7, 8, 9));
}

/// A tar.gz of `folder`'s files below `root`, made by libarchive itself.
void pack(const TestFolder& folder, const std::filesystem::path& file, const std::string& root) {
  archive* out = archive_write_new();
  archive_write_add_filter_gzip(out);
  archive_write_set_format_ustar(out);
  archive_write_open_filename(out, file.c_str());
  for (const auto& item : std::filesystem::directory_iterator(folder.path())) {
    const std::string bytes = contents(item.path());
    archive_entry* entry = archive_entry_new();
    archive_entry_set_pathname(entry, (root + item.path().filename().string()).c_str());
    archive_entry_set_size(entry, static_cast<la_int64_t>(bytes.size()));
    archive_entry_set_filetype(entry, AE_IFREG);
    archive_entry_set_perm(entry, 0644);
    archive_write_header(out, entry);
    archive_write_data(out, bytes.data(), bytes.size());
    archive_entry_free(entry);
  }
  archive_write_free(out);
}

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
  pack(files, folder / "cifar-10-binary.tar.gz", "cifar-10-batches-bin/");
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
  pack(folder, packed / "cifar-10-binary.tar.gz", "cifar-10-batches-py/");
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

TEST(Archive, SaysThatItIsDamaged) {
  const TestFolder files, folder;
  write_ten(files);
  pack(files, folder / "whole.tar.gz", "");
  const std::string bytes = contents(folder / "whole.tar.gz");
  folder.write("cifar-10-binary.tar.gz", bytes.substr(0, bytes.size() / 2));
  EXPECT_THAT(complaint([&] { load_images("cifar10", Split::train, folder.path()); }),
              HasSubstr("cannot be read"));
  EXPECT_THAT(complaint([&] { unpack(folder / "cifar-10-binary.tar.gz", folder / "out"); }),
              HasSubstr("cannot be read"));
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
  EXPECT_THAT(complaint([&] { read_members(folder / "absent", {"x"}); }),
              HasSubstr("cannot be read"));
}

TEST(Archive, UnpacksIntoAFolderThatIsWholeOrNotThere) {
  const TestFolder files, folder;
  files.write("a", "1");
  pack(files, folder / "x.tar.gz", "./inner/");
  unpack(folder / "x.tar.gz", folder / "out");
  EXPECT_EQ(contents(folder / "out/inner/a"), "1");
  EXPECT_THAT(complaint([&] { unpack(folder / "x.tar.gz", folder / "out"); }),
              HasSubstr("exists already"));
  pack(files, folder / "evil.tar.gz", "../");
  EXPECT_THAT(complaint([&] { unpack(folder / "evil.tar.gz", folder / "evil"); }),
              HasSubstr("points out of the folder"));
  EXPECT_FALSE(std::filesystem::exists(folder / "a"));
  EXPECT_FALSE(std::filesystem::exists(folder / "evil"));
}

}  // namespace
}  // namespace demi::data
