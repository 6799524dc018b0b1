#include "lab/data/picture.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "demi/core/error.h"
#include "lab/data/picture_folder.h"
#include "lab/data/picture_testing.h"
#include "lab/files/folder_testing.h"

namespace demi::data {
namespace {

using files::complaint;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Left half red, right half blue, 32 x 48.
at::Tensor red_and_blue() {
  at::Tensor picture = at::zeros({32, 48, 3}, at::kByte);
  picture.narrow(1, 0, 24).select(2, 0).fill_(250);
  picture.narrow(1, 24, 24).select(2, 2).fill_(250);
  return picture;
}

// A JPEG of quality 95 is a few levels off, most where colours meet.
void expect_near(const at::Tensor& seen, const at::Tensor& expected, double mean, int64_t most) {
  ASSERT_EQ(seen.sizes(), expected.sizes());
  ASSERT_EQ(seen.scalar_type(), at::kByte);
  const at::Tensor off = (seen.to(at::kInt) - expected.to(at::kInt)).abs();
  EXPECT_LE(off.max().item<int64_t>(), most);
  EXPECT_LE(off.to(at::kDouble).mean().item<double>(), mean);
}

std::string refusal(const std::filesystem::path& file) {
  try {
    read_picture(file);
  } catch (const DataError& error) {
    return error.what();
  }
  return "no DataError";
}

class Jpeg : public testing::Test {
 protected:
  void SetUp() override {
    if (!can_write_jpeg()) GTEST_SKIP() << "built without libjpeg";
  }
  TestFolder folder_;
};

TEST_F(Jpeg, HasThePixelsThatWereWritten) {
  folder_.write("a.jpg", jpeg_of(red_and_blue()));
  expect_near(read_picture(folder_ / "a.jpg"), red_and_blue(), 1.5, 40);
}

TEST_F(Jpeg, AGradientKeepsItsPlaces) {
  const at::Tensor ramp = at::arange(64).mul(4).to(at::kByte);
  const at::Tensor picture = at::stack(
      {ramp.view({1, 64}).expand({40, 64}), ramp.slice(0, 0, 40).view({40, 1}).expand({40, 64}),
       at::full({40, 64}, 128, at::kByte)},
      2);
  folder_.write("ramp.JPEG", jpeg_of(picture));
  expect_near(read_picture(folder_ / "ramp.JPEG"), picture, 3, 16);
}

TEST_F(Jpeg, GreyIsGivenThreeTimes) {
  const at::Tensor grey = at::arange(32).mul(8).to(at::kByte).view({1, 32, 1}).expand({16, 32, 1});
  folder_.write("grey.jpg", jpeg_of(grey));
  expect_near(read_picture(folder_ / "grey.jpg"), grey.expand({16, 32, 3}), 2, 8);
}

TEST_F(Jpeg, CmykIsConverted) {
  const at::Tensor ink = at::tensor({200, 100, 50, 128}, at::kByte).view({1, 1, 4});
  folder_.write("cmyk.jpg", jpeg_of(ink.expand({16, 16, 4})));
  const at::Tensor expected = at::tensor({100, 50, 25}, at::kByte).view({1, 1, 3});
  expect_near(read_picture(folder_ / "cmyk.jpg"), expected.expand({16, 16, 3}), 2, 3);
}

TEST_F(Jpeg, DamageNamesTheFileAndWhatIsWrong) {
  const std::string whole = jpeg_of(red_and_blue());
  folder_.write("half.jpg", whole.substr(0, whole.size() / 2));
  EXPECT_THAT(refusal(folder_ / "half.jpg"),
              AllOf(HasSubstr("half.jpg"), HasSubstr("damaged"), HasSubstr("remature end")));
  folder_.write("head.jpg", whole.substr(0, 20));
  EXPECT_THAT(refusal(folder_ / "head.jpg"), HasSubstr("head.jpg"));
  std::string empty = whole;
  const auto frame = empty.find("\xff\xc0");
  empty[frame + 5] = empty[frame + 6] = '\0';  // its height
  folder_.write("height.jpg", empty);
  EXPECT_THAT(refusal(folder_ / "height.jpg"), AllOf(HasSubstr("height.jpg"), HasSubstr("Empty")));
}

// libjpeg warns of both and has the whole picture.
TEST_F(Jpeg, BytesThatDoNotBelongThereAreNoDamage) {
  const std::string whole = jpeg_of(red_and_blue());
  folder_.write("after.jpg", whole + "something behind the end");
  expect_near(read_picture(folder_ / "after.jpg"), red_and_blue(), 1.5, 40);
  folder_.write("between.jpg", whole.substr(0, 20) + "\x01\x02" + whole.substr(20));
  expect_near(read_picture(folder_ / "between.jpg"), red_and_blue(), 1.5, 40);
}

TEST(Png, HasThePixelsThatWereWritten) {
  if (!can_write_png()) GTEST_SKIP() << "built without libpng";
  const TestFolder folder;
  folder.write("a.png", png_of(red_and_blue()));
  EXPECT_TRUE(at::equal(read_picture(folder / "a.png"), red_and_blue()));
  at::Tensor clear = at::cat({red_and_blue(), at::zeros({32, 48, 1}, at::kByte)}, 2);
  clear.narrow(0, 0, 16).select(2, 3).fill_(255);
  folder.write("clear.jpg", png_of(clear));  // by its content
  EXPECT_TRUE(at::equal(read_picture(folder / "clear.jpg"), red_and_blue())) << "alpha is left out";
  const std::string whole = png_of(red_and_blue());
  folder.write("half.png", whole.substr(0, whole.size() / 2));
  EXPECT_THAT(refusal(folder / "half.png"), AllOf(HasSubstr("half.png"), HasSubstr("damaged")));
  std::string bad_sum = whole;
  bad_sum[whole.size() - 20] ^= 1;
  folder.write("sum.png", bad_sum);
  EXPECT_THAT(refusal(folder / "sum.png"), HasSubstr("damaged"));
}

// The pixels that torchvision.io and Pillow read, which tests/fixtures/pictures/make.py recorded:
// samples of 1 to 16 bits, with gamma and without, transparent, interlaced, CMYK with Adobe's
// marker and without.
TEST(ReadPicture, HasThePixelsOfPillowAndTorchvision) {
  if (!can_write_png() || !can_write_jpeg()) GTEST_SKIP() << "built without libjpeg or libpng";
  const auto pictures = fixture_pictures("pixels.txt");
  EXPECT_EQ(pictures.size(), 17U);
  for (const auto& [name, expected] : pictures) {
    SCOPED_TRACE(name);
    const bool exact = name.ends_with(".png");  // CMYK is rounded in more than one way
    expect_near(read_picture(fixture_folder() / name), expected, exact ? 0 : 1, exact ? 0 : 1);
  }
}

TEST(ReadPicture, WhatIsNoPictureIsRefused) {
  const TestFolder folder;
  folder.write("page.jpg", "<html>not found</html>");
  EXPECT_THAT(refusal(folder / "page.jpg"),
              AllOf(HasSubstr("page.jpg"), HasSubstr("3c 68 74 6d"), HasSubstr("JPEG")));
  folder.write("empty.jpg", "");
  EXPECT_THAT(refusal(folder / "empty.jpg"), HasSubstr("an empty file"));
  EXPECT_THAT(refusal(folder / "none.jpg"), HasSubstr("No such file"));
  EXPECT_THAT(refusal("/proc/self/mem"), HasSubstr("cannot be read; seen: Input/output error"));
  folder.write("pointer.jpg", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n");
  EXPECT_THAT(refusal(folder / "pointer.jpg"), HasSubstr("git lfs pull"));
}

std::string folder_refusal(const std::filesystem::path& folder) {
  try {
    find_picture_folders(folder);
  } catch (const DataError& error) {
    return error.what();
  }
  return "no DataError";
}

TEST(PictureFolder, ClassesAndFilesStandInOrder) {
  const TestFolder folder;
  for (const char* file :
       {"train/dog/b.jpg", "train/dog/a.JPEG", "train/cat/deep/c.png", "train/cat/notes.txt",
        "train/cat/.hidden.jpg", "train/cat/.thumbs/x.jpg", "train/cat/d.webp", "train/.git/x.jpg",
        "val/dog/v.jpg"})
    folder.write(file, "x");
  const PictureFolders found = find_picture_folders(folder.path());
  EXPECT_EQ(found.train.classes, (std::vector<std::string>{"cat", "dog"}));
  const std::filesystem::path train = folder / "train";
  EXPECT_EQ(found.train.files,
            (std::vector{train / "cat/deep/c.png", train / "dog/a.JPEG", train / "dog/b.jpg"}));
  EXPECT_TRUE(at::equal(found.train.labels, at::tensor({0, 1, 1}, at::kLong)));
  EXPECT_EQ(found.train.others, (std::vector{train / "cat/d.webp", train / "cat/notes.txt"}));
  EXPECT_THAT(note_on_others(found.train),
              AllOf(HasSubstr("2 files in"), HasSubstr("are not .jpg, .jpeg or .png"),
                    HasSubstr("d.webp")));
  EXPECT_EQ(note_on_others(*found.test), "");
  ASSERT_TRUE(found.test);
  EXPECT_EQ(found.test->classes, found.train.classes);
  EXPECT_TRUE(at::equal(found.test->labels, at::tensor({1}, at::kLong))) << "numbered as in train";
  EXPECT_FALSE(find_picture_folders(train).test) << "the classes themselves";
}

// Their classes would be "Training" and "Testing", each with the pictures of all.
TEST(PictureFolder, PartsUnderOtherNamesAreNoClasses) {
  const auto refusal = [](std::initializer_list<const char*> files) {
    const TestFolder folder;
    for (const char* file : files) folder.write(file, "x");
    return folder_refusal(folder.path());
  };
  EXPECT_THAT(refusal({"Training/cat/a.jpg", "Training/dog/b.jpg", "Testing/cat/c.jpg"}),
              AllOf(HasSubstr("seen: Testing, Training"), HasSubstr("FOLDER/train")));
  EXPECT_THAT(refusal({"cat/a.jpg", "dog/b.jpg", "test/cat/c.jpg"}), HasSubstr("seen: test"));
  EXPECT_THAT(refusal({"train/cat/a.jpg", "train/dog/b.jpg", "Val/cat/c.jpg"}),
              HasSubstr("seen: Val"));
  EXPECT_EQ(refusal({"train/cat/a.jpg", "train/dog/b.jpg", "val/cat/c.jpg", "test/cat/c.jpg"}),
            "no DataError");
  EXPECT_EQ(refusal({"train/test/a.jpg", "train/dog/b.jpg"}), "no DataError") << "a class";
  const TestFolder folder;
  for (const char* file : {"cat/a.jpg", "dog/b.jpg", "test/cat/c.jpg"}) folder.write(file, "x");
  EXPECT_THAT(complaint([&] {
                find_test_pictures(folder.path(), {"cat", "dog"});
              }),
              HasSubstr("seen: test"));
}

// os.walk, and so torchvision, follows such a link forty times over.
TEST(PictureFolder, ALinkToAFolderAboveIsRefused) {
  const TestFolder folder;
  const auto link = [&](const char* to, const char* name) {
    std::filesystem::create_directory_symlink(to, folder / name);
    const std::string said = folder_refusal(folder.path());
    std::filesystem::remove(folder / name);
    return said;
  };
  folder.write("train/cat/deep/a.jpg", "x");
  folder.write("train/dog/b.jpg", "x");
  folder.write("elsewhere/c.jpg", "x");
  for (const char* to : {".", "..", "../..", "../cat", "deep/.."})
    EXPECT_THAT(link(to, "train/cat/again"), HasSubstr("the link leads to a folder above it"))
        << to;
  EXPECT_EQ(link("../../elsewhere", "train/cat/more"), "no DataError");
  EXPECT_EQ(link("nowhere", "train/cat/gone"), "no DataError") << "no picture by its name";
  std::filesystem::create_directory_symlink("../cat", folder / "train/dog/cats");
  EXPECT_THAT(link("../dog", "train/cat/dogs"), HasSubstr("a folder above")) << "a ring of two";
}

TEST(PictureFolder, OneClassIsNotTrainedOn) {
  const TestFolder folder;
  folder.write("train/cat/a.jpg", "x");
  folder.write("val/cat/a.jpg", "x");
  EXPECT_THAT(
      folder_refusal(folder.path()),
      AllOf(HasSubstr((folder / "train").string()), HasSubstr("all pictures have one class"),
            HasSubstr("seen: cat"), HasSubstr("add a folder for each other class")));
  EXPECT_THAT(folder_refusal(folder / "train"), HasSubstr("all pictures have one class"));
  folder.write("train/dog/a.jpg", "x");
  EXPECT_EQ(folder_refusal(folder.path()), "no DataError") << "of testing one is enough";
}

TEST(PictureFolder, ANameThatIsNoUtf8IsRefused) {
  const TestFolder folder;
  for (const char* name : {"cat/a.jpg", "dog/a.jpg", "p\xff/a.jpg"}) folder.write(name, "x");
  EXPECT_THAT(folder_refusal(folder.path()), HasSubstr("the name of the class is not UTF-8"));
}

TEST(PictureFolder, WhatIsMissingIsNamed) {
  const TestFolder folder;
  EXPECT_THAT(folder_refusal(folder / "nowhere"),
              AllOf(HasSubstr("nowhere"), HasSubstr("No such file"), HasSubstr("--data-dir")));
  EXPECT_THAT(folder_refusal(folder.path()), HasSubstr("there are no classes"));
  folder.write("train/cat/a.jpg", "x");
  folder.write("train/dog/readme", "x");
  EXPECT_THAT(folder_refusal(folder.path()),
              AllOf(HasSubstr("train/dog"), HasSubstr("no pictures")));
  folder.write("train/dog/a.jpg", "x");
  EXPECT_EQ(folder_refusal(folder.path()), "no DataError");
  folder.write("val/bird/a.jpg", "x");
  EXPECT_THAT(folder_refusal(folder.path()), AllOf(HasSubstr("bird"), HasSubstr("cat, dog")));
}

}  // namespace
}  // namespace demi::data
