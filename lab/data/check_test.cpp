#include "lab/data/check.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "lab/data/picture_testing.h"
#include "lab/files/folder_testing.h"

namespace demi::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// "cat/1.png: the PNG is damaged", with places below the folder.
std::vector<std::string> words(const FilesCheck& check, const TestFolder& folder) {
  std::vector<std::string> all;
  for (const Finding& finding : check.damaged)
    all.push_back(finding.place.substr(folder.path().string().size() + 1) + ": " + finding.what);
  return all;
}

std::string picture(int64_t shade) { return png_of(at::full({4, 4, 3}, shade, at::kByte)); }

TEST(CheckPictures, ListsAllThatTrainingWouldRefuse) {
  if (!can_write_png()) GTEST_SKIP() << "built without libpng";
  const TestFolder folder;
  folder.write("train/cat/1.png", picture(1));
  folder.write("train/cat/2.png", picture(2).substr(0, 60));
  folder.write("train/cat/3.jpg", "<html>");
  folder.write("train/dog/4.png", picture(4));
  folder.write("train/dog/5.png", "");
  folder.write("train/bird/readme", "none");
  folder.write("train/p\xff/6.png", picture(6));
  folder.write("val/cat/7.png", picture(7).substr(0, 50));
  folder.write("val/cow/8.png", picture(8));
  std::filesystem::create_directory_symlink("..", folder / "train/dog/again");
  int64_t calls = 0, last = 0;
  const FilesCheck check = check_pictures(folder.path(), [&](int64_t done, int64_t all) {
    ++calls;
    last = all;
    EXPECT_EQ(done, calls);
  });
  EXPECT_EQ(calls, 6);
  EXPECT_EQ(last, 6);
  EXPECT_THAT(words(check, folder),
              testing::UnorderedElementsAre(
                  "train/p\xff: the name of the class is not UTF-8",
                  "train/bird: the class has no pictures",
                  "train/dog/again: the link leads to a folder above it",
                  "val/cow: the class is not among those that are trained on",
                  "train/cat/2.png: the PNG is damaged", "train/cat/3.jpg: not a picture",
                  "train/dog/5.png: not a picture", "val/cat/7.png: the PNG is damaged"));
  EXPECT_THAT(check.classes, ElementsAre("bird", "cat", "dog"));
  EXPECT_THAT(check.parts[0].of_class, ElementsAre(0, 3, 2));
  EXPECT_EQ(check.parts[1].examples(), 1);
  EXPECT_THAT(check.notes, testing::Contains(HasSubstr("class dog is trained on and not tested")));
}

TEST(CheckPictures, FindsPicturesOfTheSameBytes) {
  if (!can_write_png()) GTEST_SKIP() << "built without libpng";
  const TestFolder folder;
  for (const char* name : {"train/cat/1.png", "train/cat/2.png", "val/cat/3.png"})
    folder.write(name, picture(10));
  folder.write("val/dog/9.png", picture(90));
  folder.write("train/dog/4.png", picture(40));
  folder.write("train/dog/5.png", picture(50));
  folder.write("train/cat/6.png", picture(50));
  const FilesCheck check = check_pictures(folder.path());
  EXPECT_THAT(check.damaged, IsEmpty());
  ASSERT_EQ(check.repeated.size(), 2U);
  EXPECT_THAT(check.repeated[0].places,
              ElementsAre(HasSubstr("cat/1.png"), HasSubstr("cat/2.png"), HasSubstr("cat/3.png")));
  EXPECT_TRUE(check.repeated[0].in_both_parts);
  EXPECT_FALSE(check.repeated[0].of_several_classes);
  EXPECT_FALSE(check.repeated[1].in_both_parts);
  EXPECT_TRUE(check.repeated[1].of_several_classes);
}

TEST(CheckPictures, OneClassAndNoFolderAreDamage) {
  if (!can_write_png()) GTEST_SKIP() << "built without libpng";
  const TestFolder folder;
  folder.write("cat/1.png", picture(1));
  EXPECT_THAT(check_pictures(folder.path()).damaged[0].what, "all pictures have one class");
  EXPECT_THAT(check_pictures(folder / "nowhere").damaged[0].what, "there are no classes");
}

TEST(CheckTexts, ListsAllThatTrainingWouldRefuse) {
  const TestFolder folder;
  folder.write("train.csv",
               "label,text\n"
               "pos,good\n"
               "neg,bad,worse\n"
               "neg,\"bad\" indeed\n"
               ",nothing\n"
               "neg,caf\xe9\n"
               "pos,\n"
               "pos,good\n"
               "neg,good\n"
               "neg,\"never\nclosed\n");
  folder.write("test.csv", "label,text\npos,good\nnone,so so\n");
  const FilesCheck check = check_texts(folder / "train.csv", folder / "test.csv");
  EXPECT_THAT(words(check, folder),
              ElementsAre("train.csv, line 3: another number of fields than in the first record",
                          "train.csv, line 4: text after a closing quote",
                          "train.csv, line 10: a quote is never closed",
                          "train.csv, line 5: the text has no label",
                          "test.csv, line 3: a label is unknown",
                          "train.csv, line 6, offset 3 of the text: the text is not UTF-8"));
  EXPECT_THAT(check.parts[0].of_class, ElementsAre(2, 3));
  ASSERT_EQ(check.repeated.size(), 1U);
  EXPECT_EQ(check.repeated[0].places.size(), 4U);
  EXPECT_TRUE(check.repeated[0].in_both_parts && check.repeated[0].of_several_classes);
  EXPECT_THAT(check.notes, ElementsAre("1 texts have no word", HasSubstr("class neg is trained")));
}

TEST(CheckTexts, SaysWhereAQuoteSwallowsLines) {
  const TestFolder folder;
  folder.write("t.tsv", "label\ttext\n1\t\"good\n0\tbad\n1\tfine\"\n0\tso so\n");
  const FilesCheck check = check_texts(folder / "t.tsv", {});
  EXPECT_THAT(check.notes, ElementsAre(AllOf(HasSubstr("1 texts hold line breaks"),
                                             HasSubstr("t.tsv, line 2"), HasSubstr("quoting=3"))));
}

TEST(CheckTexts, SaysOnceWhyNothingCanBeRead) {
  const TestFolder folder;
  folder.write("x.csv", "label;text\npos;good\nneg;bad\n");
  for (const char* name : {"x.csv", "absent.csv"}) {
    const FilesCheck check = check_texts(folder / name, folder / "also-absent.csv");
    EXPECT_EQ(check.damaged.size(), 1U) << name;
    EXPECT_EQ(check.parts.at(0).examples(), 0);
  }
}

}  // namespace
}  // namespace demi::data
