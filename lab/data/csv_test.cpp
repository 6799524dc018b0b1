#include "lab/data/csv.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "demi/core/error.h"
#include "demi/core/source_dir_testing.h"
#include "lab/data/registry.h"
#include "lab/files/folder_testing.h"

namespace demi::data {
namespace {

using files::complaint;
using testing::AllOf;
using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;
using Words = std::vector<std::string>;

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
  EXPECT_THAT(complaint_of("a,b\n\"x\ny\"z,e\n"),
              HasSubstr("line 3: text after a closing quote; seen: z"));
  EXPECT_THAT(
      complaint_of("a,b\nc,d\ne\n"),
      HasSubstr("line 3: another number of fields than in the first record; seen: 1; accepted: 2"));
  EXPECT_THAT(complaint([&] { read_csv(folder_ / "absent", ','); }), HasSubstr("cannot be opened"));
}

TEST_F(Csv, NamesAnEncodingThatIsNotUtf8) {
  using namespace std::string_literals;
  const std::string wide = "l\0a\0b\0e\0l\0\t\0t\0e\0x\0t\0\r\0\n\0"s;
  for (const std::string& text : {"\xFF\xFE"s + wide, wide, "\xFE\xFF\0"s + wide.substr(0, 23)})
    EXPECT_THAT(complaint_of(text),
                AllOf(HasSubstr("not UTF-8; seen: UTF-16"), HasSubstr("iconv -f UTF-16")));
  EXPECT_EQ(read("a,b\n\0,1\n"s).size(), 2U) << "a single 0";
}

TEST_F(Csv, NamesAPointerAndAReadThatFails) {
  EXPECT_THAT(complaint([&] { read_csv(source_dir() / "tests/fixtures/git_lfs/pointer", ','); }),
              HasSubstr("git lfs pull"));
  EXPECT_THAT(complaint([&] { read_csv("/proc/self/mem", ','); }),
              HasSubstr("cannot be read; seen: Input/output error"));
}

// As pandas.read_csv does. The compressed bytes are those of zlib's own writer.
TEST_F(Csv, ReadsGzip) {
  const auto pack = [&](const char* name, const std::string& text) {
    gzFile file = gzopen((folder_ / name).c_str(), "wb");
    gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
    gzclose(file);
  };
  pack("x.csv.gz", "label,text\npos,good\nneg,bad\n");
  pack("x.tsv.gz", "label\ttext\npos\tgood\nneg\tbad\n");
  for (const char* name : {"x.csv.gz", "x.tsv.gz"}) {
    const LabelledTexts read = read_labelled_texts(folder_ / name);
    EXPECT_THAT(read.classes, ElementsAre("neg", "pos")) << name;
    EXPECT_EQ(read.sources.at(0).read(), "good") << name;
  }
  const std::string whole = files::contents(folder_ / "x.csv.gz");
  folder_.write("cut.csv.gz", whole.substr(0, whole.size() - 3));
  EXPECT_THAT(complaint([&] { read_csv(folder_ / "cut.csv.gz", ','); }),
              HasSubstr("damaged or cut short"));
}

// An .xlsx is a zip archive, whose entries begin with these bytes (APPNOTE.TXT, 4.3.7).
TEST_F(Csv, NamesAZipArchiveAndOldLineEnds) {
  EXPECT_THAT(complaint_of("PK\3\4\x14,a;b"), AllOf(HasSubstr("zip"), HasSubstr("xlsx")));
  EXPECT_THAT(complaint_of("label,text\rpos,good\rneg,bad\r"),
              AllOf(HasSubstr("CR alone"), HasSubstr("tr '\\r' '\\n'")));
  EXPECT_EQ(read("a,\"b\rc\"").at(0).fields.at(1), "b\rc") << "within a field";
}

// As Python's csv and pandas.read_csv do: most TSV files of texts know no quoting.
TEST_F(Csv, AQuoteInsideOfAFieldStandsForItself) {
  EXPECT_THAT(read("a,b\n5\" wide,d\"e\"\n")[1].fields, ElementsAre("5\" wide", "d\"e\""));
  EXPECT_THAT(read("9\ta \"quoted\", word\n", '\t')[0].fields,
              ElementsAre("9", "a \"quoted\", word"));
}

TEST_F(Csv, NamesASeparatorThatIsNotItsOwn) {
  EXPECT_THAT(complaint_of("label;text\npos;good, really\n"),
              HasSubstr("line 1: the first line has one column; seen: label;text, with semicolons "
                        "in it; accepted: columns that are separated by commas"));
  EXPECT_THAT(complaint_of("pos\tgood\n"), HasSubstr("with tabs in it"));
  EXPECT_THAT(complaint([&] {
                folder_.write("x.tsv", "pos|good\n");
                read_labelled_texts(folder_ / "x.tsv");
              }),
              HasSubstr("separated by tabs; save the file with commas as .csv"));
  EXPECT_EQ(complaint_of("pos,good; bad\n"), "no DataError");
}

// Truth: files that pandas and Python's csv wrote (tests/fixtures/csv/make.py).
TEST_F(Csv, ReadsWhatPandasAndExcelWrite) {
  const auto folder = source_dir() / "tests/fixtures/csv";
  const Words texts{"good, really",      "she said \"no\"", "two\nlines",
                    "na\u00efve \u4e2d", " blanks ",        "'s"};
  for (const char* name :
       {"pandas.csv", "pandas_index.csv", "pandas.tsv", "pandas_quoted.csv", "excel_utf8.csv"}) {
    const LabelledTexts read = read_labelled_texts(folder / name);
    EXPECT_THAT(read.classes, ElementsAre("neg", "pos")) << name;
    ASSERT_EQ(read.sources.size(), texts.size()) << name;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      EXPECT_EQ(read.sources[i].read(), texts[i]) << name;
      EXPECT_EQ(read.sources[i].label, i % 2 == 0 ? 1 : 0) << name;
    }
  }
  const auto refusal = [&](const char* name) {
    return complaint([&] { read_labelled_texts(folder / name); });
  };
  EXPECT_THAT(refusal("utf16.tsv"), HasSubstr("seen: UTF-16"));
  EXPECT_THAT(refusal("semicolons.csv"), HasSubstr("semicolons"));
  EXPECT_THAT(refusal("powershell.csv"), HasSubstr("-NoTypeInformation"));
}

TEST_F(Csv, OfTwoColumnsThatMayBeMeantNoneIs) {
  const auto refusal = [&](const std::string& heading) {
    folder_.write("x.csv", heading + "\na,b,c\nb,a,c\na,c,c\nb,c,c\n");
    return complaint([&] { read_labelled_texts(folder_ / "x.csv"); });
  };
  EXPECT_THAT(refusal("class,label,text"),
              AllOf(HasSubstr("which column is meant; seen: class and label"),
                    HasSubstr("another heading")));
  EXPECT_THAT(refusal("label,Review,text"), HasSubstr("seen: Review and text"));
  EXPECT_EQ(refusal("label,id,text"), "no DataError");
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
              HasSubstr("line 1: it is not clear whether the first line is a heading"));
  EXPECT_EQ(said("pos,good\nneg,bad\npos,better\n"), "no DataError");
  EXPECT_EQ(said("1,good\n0,bad\n"), "no DataError") << "all labels are numbers";
  EXPECT_EQ(said("0,good\n1,bad\n2,odd\n"), "no DataError");
}

// pandas writes a frame without names of columns with their numbers: DataFrame(rows).to_csv(f,
// index=False).
TEST_F(Csv, RefusesNumbersOfColumnsAsAHeading) {
  const auto said = [&](const std::string& content, const std::vector<std::string>& classes = {}) {
    folder_.write("x.csv", content);
    return complaint([&] { read_labelled_texts(folder_ / "x.csv", classes); });
  };
  const auto refused = HasSubstr("line 1: it is not clear whether the first line is a heading");
  EXPECT_THAT(said("0,1\npos,good film\nneg,bad\npos,fine\n"), refused);
  EXPECT_THAT(said("7,good\npos,fine\nneg,bad\n"), refused) << "no other label is a number";
  EXPECT_THAT(said("0,1\n1,good\n0,bad\n"), refused) << "labels that are numbers";
  EXPECT_THAT(said("0,1\n2,good\n3,bad\n"), refused);
  EXPECT_THAT(said("0,1\n1,good\n0,bad\n", {"0", "1"}), refused) << "a test file";
  EXPECT_EQ(said("0,1\n1,good\n0,2\n"), "no DataError") << "texts that are numbers";
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
  const auto classes = [&](const Words& labels) {
    std::string content;
    for (const std::string& label : labels) content += label + "\ttext\n" + label + "\ttext\n";
    folder_.write("x.tsv", content);
    return read_labelled_texts(folder_ / "x.tsv").classes;
  };
  EXPECT_THAT(classes({"10", "9"}), ElementsAre("9", "10"));
  EXPECT_THAT(classes({"+1", "-1"}), ElementsAre("-1", "+1")) << "LIBSVM's labels";
  EXPECT_THAT(classes({"10.0", "2.0", "1.5"}), ElementsAre("1.5", "2.0", "10.0"));
  EXPECT_THAT(classes({"1e3", "-2", "+0.5"}), ElementsAre("-2", "+0.5", "1e3"));
  EXPECT_THAT(classes({"9007199254740993", "9007199254740992"}),
              ElementsAre("9007199254740992", "9007199254740993"));
  for (const char* word : {"nan", "inf", "+-1", "0x10", "1,5", "1st"})
    EXPECT_THAT(classes({"9", "10", word}),
                ElementsAreArray(std::set<std::string>{"9", "10", word}))
        << word << ": not all are numbers, so by their bytes";
}

TEST_F(Csv, ALabelIsWrittenInOneWay) {
  folder_.write("x.csv", "label,text\n pos,a\npos ,b\nneg,c\n");
  EXPECT_THAT(read_labelled_texts(folder_ / "x.csv").classes, ElementsAre("neg", "pos"))
      << "spaces around it are passed over, as around headings";
  folder_.write("x.csv", "label,text\npos,a\n ,b\nneg,c\n");
  EXPECT_THAT(complaint([&] { read_labelled_texts(folder_ / "x.csv"); }),
              HasSubstr("x.csv, line 3: the text has no label"));
  folder_.write("x.csv", "label,text\n1,a\n0,b\n01,c\n");
  EXPECT_THAT(
      complaint([&] { read_labelled_texts(folder_ / "x.csv"); }),
      AllOf(HasSubstr("a label that is a number is written in two ways"), HasSubstr("01 and 1")));
}

TEST_F(Csv, SaysWhichLabelOrColumnIsWrong) {
  folder_.write("x.csv", "a,text one\nq,text two\n");
  EXPECT_THAT(complaint([&] {
                read_labelled_texts(folder_ / "x.csv", {"a", "b"});
              }),
              HasSubstr("line 2: a label is unknown; seen: q; accepted: a, b"));
  folder_.write("x.csv", "a,b,c\n");
  EXPECT_THAT(complaint([&] { read_labelled_texts(folder_ / "x.csv"); }),
              HasSubstr("not clear which columns"));
  folder_.write("x.csv", "");
  EXPECT_THAT(complaint([&] { read_labelled_texts(folder_ / "x.csv"); }),
              HasSubstr("there are no texts"));
}

}  // namespace
}  // namespace demi::data
