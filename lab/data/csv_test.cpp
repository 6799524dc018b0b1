#include "lab/data/csv.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "demi/core/error.h"
#include "lab/data/csv_texts.h"
#include "lab/data/folder_testing.h"
#include "lab/data/registry.h"

namespace demi::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Csv : public testing::Test {
 protected:
  std::vector<CsvRecord> read(const std::string& content, char separator = ',') const {
    folder_.write("x.csv", content);
    return read_csv(folder_ / "x.csv", separator);
  }
  std::string complaint_of(const std::string& content) const {
    return complaint([&] { read(content); });
  }
  TestFolder folder_;
};

// The rules and most examples: RFC 4180, section 2.
TEST_F(Csv, ReadsTheFormsOfTheRfc) {
  const auto records =
      read("aaa,bbb,ccc\r\nzzz,yyy,xxx\r\n\"a,1\",\"b\r\nbb\",\"c\"\"c\"\r\n, ,\"\"");
  ASSERT_EQ(records.size(), 4U);
  EXPECT_THAT(records[1].fields, ElementsAre("zzz", "yyy", "xxx"));
  EXPECT_THAT(records[2].fields, ElementsAre("a,1", "b\r\nbb", "c\"c"));
  EXPECT_THAT(records[3].fields, ElementsAre("", " ", ""));
  EXPECT_EQ(records[2].line, 3);
  EXPECT_EQ(records[3].line, 5);
}

TEST_F(Csv, ReadsLineFeedsTabsAndAByteOrderMark) {
  EXPECT_THAT(read("\xEF\xBB\xBF"
                   "a\tb,c\n",
                   '\t')[0]
                  .fields,
              ElementsAre("a", "b,c"));
  EXPECT_EQ(read("a\nb\n").size(), 2U);
  EXPECT_EQ(read("").size(), 0U);
  EXPECT_THAT(read("a,").at(0).fields, ElementsAre("a", ""));
}

TEST_F(Csv, SkipsBlankLinesAtTheEndAlone) {
  for (const char* end : {"\n", "\n\n", "\r\n\r\n", "\n  \n", "\n \n\n\n   "})
    EXPECT_EQ(read(std::string("a,b\nc,d") + end).size(), 2U) << testing::PrintToString(end);
  EXPECT_EQ(read("\n\n").size(), 0U);
  EXPECT_EQ(read("a,b\nc, \n").at(1).fields[1], " ");
  EXPECT_EQ(read("a\tb\n\t\n", '\t').size(), 2U) << "two empty fields";
  EXPECT_THAT(complaint_of("a,b\n\nc,d\n"),
              HasSubstr("line 2: another number of fields than in the first record; seen: 1"));
}

TEST_F(Csv, SaysOnWhichLineAQuoteIsBroken) {
  EXPECT_THAT(complaint_of("a,b\n\"c\nd,e\n"), HasSubstr("x.csv, line 2: a quote is never closed"));
  EXPECT_THAT(complaint_of("a,b\nc,d\"e\n"),
              HasSubstr("line 2: a quote inside of an unquoted field"));
  EXPECT_THAT(complaint_of("a,b\n\"x\ny\"z,e\n"),
              HasSubstr("line 3: text after a closing quote; seen: z"));
  EXPECT_THAT(
      complaint_of("a,b\nc,d\ne\n"),
      HasSubstr("line 3: another number of fields than in the first record; seen: 1; accepted: 2"));
  EXPECT_THAT(complaint([&] { read_csv(folder_ / "absent", ','); }), HasSubstr("cannot be opened"));
}

TEST_F(Csv, GivesTextsWithLabels) {
  folder_.write("train.csv", "review,id,sentiment\n\"good, really\",7,positive\nbad,8,negative\n");
  folder_.write("test.csv", "positive,good\n");
  const LabelledTexts texts = read_labelled_texts(folder_ / "train.csv");
  EXPECT_THAT(texts.classes, ElementsAre("negative", "positive"));
  EXPECT_EQ(texts.sources[0].label, 1);
  EXPECT_EQ(texts.sources[0].read(), "good, really");
  EXPECT_THAT(texts.sources[1].place, HasSubstr("train.csv, line 3"));
  const TextCorpus corpus = load_text_files(folder_ / "train.csv", folder_ / "test.csv");
  EXPECT_TRUE(at::equal(corpus.test.labels, at::tensor({1}, at::kLong)));
  EXPECT_EQ(corpus.vocabulary->id("really"), corpus.train.tokens[2].item<int>());
}

// `Label,Text` counted as a first text of a class "Label".
TEST_F(Csv, TakesHeadingsInAnyLetters) {
  for (const char* heading : {"Label,Text", "LABEL,TEXT", "label, text", "Sentiment,Review"}) {
    folder_.write("x.csv", std::string(heading) + "\npos,good\nneg,bad\n");
    EXPECT_THAT(read_labelled_texts(folder_ / "x.csv").classes, ElementsAre("neg", "pos"))
        << heading;
  }
}

TEST_F(Csv, RefusesAFirstLineThatMayBeAHeading) {
  const auto said = [&](const std::string& content) {
    folder_.write("x.csv", content);
    return complaint([&] { read_labelled_texts(folder_ / "x.csv"); });
  };
  EXPECT_THAT(said("category,description\npos,good\nneg,bad\n"),
              HasSubstr("line 1: it cannot be told whether the first line is a heading"));
  EXPECT_EQ(said("pos,good\nneg,bad\npos,better\n"), "no DataError");
  EXPECT_EQ(said("1,good\n0,bad\n"), "no DataError") << "no heading is a number";
}

TEST_F(Csv, NoTextsAreDamagedData) {
  folder_.write("x.csv", "label,text\n");
  EXPECT_THAT(complaint([&] { read_labelled_texts(folder_ / "x.csv"); }),
              HasSubstr("there are no texts; seen: a heading alone"));
  EXPECT_THAT(complaint([&] {
                read_labelled_texts(folder_ / "x.csv", {"a", "b"});
              }),
              HasSubstr("there are no texts"));
  folder_.write("one.csv", "label,text\npos,good\npos,better\n");
  EXPECT_THAT(complaint([&] { load_text_files(folder_ / "one.csv", folder_ / "one.csv"); }),
              HasSubstr("all texts have one label; seen: pos"));
}

TEST_F(Csv, OrdersNumbersByValue) {
  folder_.write("x.tsv", "10\ta\n9\tb \"quoted\n");
  EXPECT_THAT(complaint([&] { read_labelled_texts(folder_ / "x.tsv"); }),
              HasSubstr("line 2: a quote inside"));
  folder_.write("x.tsv", "10\ta\n9\tb\n");
  EXPECT_THAT(read_labelled_texts(folder_ / "x.tsv").classes, ElementsAre("9", "10"));
}

TEST_F(Csv, SaysWhichLabelOrColumnIsWrong) {
  folder_.write("x.csv", "a,text one\nq,text two\n");
  EXPECT_THAT(complaint([&] {
                read_labelled_texts(folder_ / "x.csv", {"a", "b"});
              }),
              HasSubstr("line 2: a label is unknown; seen: q; accepted: a, b"));
  folder_.write("x.csv", "a,b,c\n");
  EXPECT_THAT(complaint([&] { read_labelled_texts(folder_ / "x.csv"); }),
              HasSubstr("cannot be told which columns"));
  folder_.write("x.csv", "");
  EXPECT_THAT(complaint([&] { read_labelled_texts(folder_ / "x.csv"); }),
              HasSubstr("there are no texts"));
}

}  // namespace
}  // namespace demi::data
