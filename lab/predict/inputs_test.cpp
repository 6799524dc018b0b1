#include "lab/predict/inputs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "demi/core/error.h"
#include "lab/files/folder_testing.h"

namespace demi::predict {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

class Inputs : public ::testing::Test {
 protected:
  Sources sources() {
    return {input_, [this](const std::string& what) { said_.push_back(what); }};
  }
  std::string at(const char* name) const { return (folder_ / name).string(); }
  static Words names(const std::vector<Input>& inputs) {
    Words all;
    for (const Input& input : inputs) all.push_back(input.name);
    return all;
  }

  TestFolder folder_;
  std::istringstream input_;
  Words said_;
};

TEST_F(Inputs, AFolderIsReadToItsDepthsByTheBytesOfItsPaths) {
  for (const char* name : {"f/b.JPG", "f/B.png", "f/a/z.jpeg", "f/a.png", "f/.hidden.png",
                           "f/notes.txt", "f/a/list", "f/.git/x.png"})
    folder_.write(name, "");
  fs::create_directory_symlink(folder_ / "f", folder_ / "f/a/above");
  const Words arguments{at("f")};
  EXPECT_THAT(names(picture_inputs(arguments, sources())),
              ElementsAre(at("f/B.png"), at("f/a.png"), at("f/a/z.jpeg"), at("f/b.JPG")));
  EXPECT_THAT(said_, ElementsAre(AllOf(HasSubstr(at("f/a/list")), HasSubstr(at("f/notes.txt")))));
}

TEST_F(Inputs, WhatIsNotThereIsAnErrorInItsPlace) {
  folder_.write("a", "");
  fs::create_directories(folder_ / "empty");
  const Words arguments{at("absent.png"), at("a"), at("empty"), ""};
  const auto inputs = picture_inputs(arguments, sources());
  ASSERT_EQ(inputs.size(), 4U);
  EXPECT_THAT(inputs[0].error, HasSubstr("No such file"));
  EXPECT_EQ(inputs[1].error, "") << "its name need not say that it is a picture";
  EXPECT_THAT(inputs[2].error, HasSubstr("no .jpg, .jpeg or .png"));
  EXPECT_THAT(inputs[3].error, HasSubstr("\"\": No such file"));
}

TEST_F(Inputs, AListAndStandardInputHaveOneALine) {
  folder_.write("list", "one\r\n\r\nlast");
  input_.str("\xEF\xBB\xBFin\n");
  const Words arguments{"a text", "@" + at("list"), "-", "@"};
  const auto inputs = text_inputs(arguments, sources());
  EXPECT_THAT(names(inputs), ElementsAre("a text", "one", "", "last", "in", "@"));
  EXPECT_EQ(inputs[0].place, "");
  EXPECT_EQ(inputs[3].place, at("list") + ", line 3");
  EXPECT_EQ(inputs[4].place, "standard input, line 1");
  const Words absent{"@" + at("absent")}, folder{"@" + folder_.path().string()};
  EXPECT_THROW(text_inputs(absent, sources()), DataError);
  EXPECT_THROW(text_inputs(folder, sources()), DataError);
}

// A read that fails is not the end of the list.
TEST_F(Inputs, AListThatCannotBeReadToItsEndIsRefused) {
  const Words arguments{"@/proc/self/mem"};
  EXPECT_THAT(files::complaint([&] { text_inputs(arguments, sources()); }),
              HasSubstr("cannot be read to its end; seen: Input/output error"));
  EXPECT_THAT(files::complaint([&] { picture_inputs(arguments, sources()); }),
              HasSubstr("cannot be read to its end"));
}

TEST_F(Inputs, Utf16IsRefusedByItsName) {
  using namespace std::string_literals;
  folder_.write("marked", "\xFF\xFEg\0o\0o\0d\0\n\0"s);
  folder_.write("unmarked", "g\0o\0o\0d\0\n\0"s);
  for (const char* name : {"marked", "unmarked"}) {
    const Words arguments{"@" + at(name)};
    EXPECT_THAT(files::complaint([&] { text_inputs(arguments, sources()); }),
                AllOf(HasSubstr("seen: UTF-16"), HasSubstr("iconv -f UTF-16")));
  }
}

TEST_F(Inputs, AFilesNameAsATextIsSaid) {
  folder_.write("reviews.txt", "good");
  const Words arguments{at("reviews.txt")};
  EXPECT_THAT(names(text_inputs(arguments, sources())), ElementsAre(at("reviews.txt")));
  EXPECT_THAT(said_, ElementsAre(HasSubstr("@" + at("reviews.txt"))));
}

TEST_F(Inputs, AColumnIsFoundByItsHeading) {
  folder_.write("a.csv", "id, text ,label\n1,\"good, or\nnot\",pos\n2,bad,neg\n");
  folder_.write("b.tsv", "text\tx\nfine\t1\n");
  folder_.write("empty.csv", "");
  const Words files{at("a.csv"), at("b.tsv")};
  const auto inputs = csv_inputs(files, "text");
  EXPECT_THAT(names(inputs), ElementsAre("good, or\nnot", "bad", "fine"));
  EXPECT_EQ(inputs[1].place, at("a.csv") + ", line 4");
  try {
    csv_inputs(files, "txet");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("did you mean text"), HasSubstr("label")));
  }
  folder_.write("twice.csv", "text, text\nfilm superb,film awful\n");
  const Words twice{at("twice.csv")};
  try {
    csv_inputs(twice, "text");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("several columns"), HasSubstr("text")));
  }
  const Words empty{at("empty.csv")}, absent{at("absent.csv")};
  EXPECT_THROW(csv_inputs(empty, "text"), DataError);
  EXPECT_THROW(csv_inputs(absent, "text"), DataError);
}

}  // namespace
}  // namespace demi::predict
