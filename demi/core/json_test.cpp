#include "demi/core/json.h"

#include <gmock/gmock.h>

#include <string>
#include <string_view>

#include "demi/core/fuzz_testing.h"
#include "demi/core/json_fuzz_testing.h"

namespace demi {
namespace {

using namespace std::string_view_literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

std::string nested(std::size_t depth, const std::string& open, const std::string& close) {
  std::string text;
  for (std::size_t i = 0; i < depth; ++i) text += open;
  text += "1";
  for (std::size_t i = 0; i < depth; ++i) text += close;
  return text;
}

/// The reader's complaint about a text, the same for both kinds of documents.
std::string complaint(std::string_view text) {
  const auto said = [](const auto& read) -> std::string {
    try {
      read();
      return "none";
    } catch (const JsonError& error) {
      return error.what();
    }
  };
  const std::string one = said([&] { read_json(text); });
  EXPECT_EQ(said([&] { read_ordered_json(text); }), one);
  return one;
}

TEST(ReadJson, TakesDocumentsOfAllowedDepth) {
  EXPECT_EQ(read_json(R"({"a": [1, "[[[["], "b": null})").dump(), R"({"a":[1,"[[[["],"b":null})");
  EXPECT_NO_THROW(read_json(nested(kDeepestJson, "[", "]")).dump());
  EXPECT_NO_THROW(read_json(nested(kDeepestJson / 2, "[{\"a\": ", "}]")).dump());
}

TEST(ReadJson, RefusesDeeperOnesWithoutRecursion) {
  for (const std::size_t depth : {std::size_t{kDeepestJson} + 1, std::size_t{1'000'000}}) {
    EXPECT_THAT([&] { read_json(nested(depth, "[", "]")); },
                ThrowsMessage<JsonError>(HasSubstr("more than 512 deep")));
    EXPECT_THAT([&] { read_json(nested(depth, "{\"a\":", "}")); },
                ThrowsMessage<JsonError>(HasSubstr("more than 512 deep")));
  }
}

TEST(ReadJson, RefusesWhatIsNoJson) {
  for (const char* text : {"", "{", "[1,]", "{\"a\" 1}", "nul", "NaN", "-Infinity", "01", "+1",
                           "'a'", "// a\n1", "\"\t\"", "[1] [2]", "{}}", "\"\\ud800\""})
    EXPECT_NE(complaint(text), "none") << text;
  EXPECT_THAT(complaint(R"({"a": 1} x)"), HasSubstr("(offset 9)"));
}

// The kinds of values, and their order where it is asked for.
TEST(ReadJson, GivesWhatStandsInTheText) {
  const auto text = R"({"z":[true,false,null,-1,18446744073709551615,2.5],"a":{"b":"é\n"}})"sv;
  EXPECT_EQ(read_ordered_json(text).dump(), text);
  EXPECT_EQ(read_json(text), nlohmann::json::parse(text));
  EXPECT_EQ(read_json("\xEF\xBB\xBF[1]").dump(), "[1]");  // PowerShell 5's -Encoding UTF8
  EXPECT_EQ(json_or_null("[1"), nullptr);
  EXPECT_EQ(json_or_null<nlohmann::ordered_json>("[1]").dump(), "[1]");
}

TEST(ReadJson, RefusesANameThatStandsTwice) {
  EXPECT_THAT(complaint(R"({"a": [0, {"lr": 1, "b": 2, "lr": 1}]})"),
              HasSubstr("a[1].lr: the name stands twice"));
  EXPECT_THAT(complaint(R"({"": 1, "": 2})"), HasSubstr("twice"));
  EXPECT_EQ(complaint(R"({"a": {"a": [{"a": 1}, {"a": 1}]}})"), "none");
}

// RFC 8259, section 8.1: UTF-8; 2.1: no other bytes, NUL among them.
TEST(ReadJson, RefusesBytesThatAreNoUtf8) {
  for (const auto text : {"{\"a\": \"b\xff\"}"sv, "{\"a\": \"b\xc3\"}"sv,
                          "{\"a\": \"b\xed\xa0\x80\"}"sv, "{\"a\": \"b\xc0\xaf\"}"sv})
    EXPECT_THAT(complaint(text), AllOf(HasSubstr("a: "), HasSubstr("ill-formed UTF-8"),
                                       HasSubstr("(offset "), Not(HasSubstr("\xff"))))
        << text;
  EXPECT_THAT(complaint("{\"a\": \"b\xff\"}"), HasSubstr("(offset 8)"));
  EXPECT_THAT(complaint("[1]\0[2]"sv), HasSubstr("a NUL (offset 3)"));
  EXPECT_THAT(complaint("\xFF\xFE[\0"
                        "1\0]\0"sv),
              HasSubstr("iconv -f UTF-16"));
}

TEST(ReadJson, RefusesNumbersBeyondDouble) {
  EXPECT_THAT(complaint(R"({"model": {"eps": 1e400}})"),
              AllOf(HasSubstr("model.eps: "), HasSubstr("1e400")));
  EXPECT_EQ(read_json("1000000000000000019884624838656").get<double>(), 1e30);  // transformers'
  EXPECT_EQ(read_json("1e-400").get<double>(), 0);
}

TEST(ReadJson, RefusesLongTextsAndSaysNoLongerOnes) {
  EXPECT_THAT([] { read_json("[1,  2]", 6); },
              ThrowsMessage<JsonError>(HasSubstr("more than 6 bytes")));
  EXPECT_EQ(read_json("[1, 2]", 6).size(), 2U);
  const std::string longest =
      "{\"" + std::string(100'000, 'k') + "\": \"" + std::string(100'000, 'v');
  EXPECT_LT(complaint(longest).size(), 1000U);
}

TEST(ReadJson, RefusesOrderedObjectsThatTakeForEver) {
  const auto members = [](std::size_t count) {
    std::string text = "{\"0\":0";
    for (std::size_t i = 1; i < count; ++i) text += ",\"" + std::to_string(i) + "\":0";
    return text + "}";
  };
  const std::string most = members(kMostOrderedMembers), more = members(kMostOrderedMembers + 1);
  EXPECT_EQ(read_ordered_json(most).size(), kMostOrderedMembers);
  EXPECT_THAT([&] { read_ordered_json(more); },
              ThrowsMessage<JsonError>(HasSubstr("more than 4096 members")));
  EXPECT_EQ(read_json(more).size(), kMostOrderedMembers + 1);
}

TEST(JsonFuzz, EveryInputIsADocumentOrRefused) {
  for (const FuzzTarget& target : kFuzzTargets) fuzz(target, 4000);
}

}  // namespace
}  // namespace demi
