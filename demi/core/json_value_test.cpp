#include "demi/core/json_value.h"

#include <gmock/gmock.h>

#include <map>
#include <set>
#include <string>
#include <vector>

namespace demi {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// The complaint when `text` is read as a T.
template <class T>
std::string complaint(const char* text) {
  const nlohmann::json document = read_json(text);
  try {
    JsonValue<nlohmann::json>(document).at("a").at("b").get<T>();
    return "none";
  } catch (const JsonError& error) {
    return error.what();
  }
}

TEST(JsonValue, GivesWhatIsThere) {
  const nlohmann::json document = read_json(
      R"({"n": -3, "u": 18446744073709551615, "x": 2, "t": "é", "f": true, "l": [3, 1]})");
  const JsonValue all(document);
  EXPECT_EQ(all.at("n").get<int>(), -3);
  EXPECT_EQ(all.at("u").get<uint64_t>(), UINT64_MAX);
  EXPECT_EQ(all.at("x").get<double>(), 2.0);
  EXPECT_EQ(all.at("t").get<std::string>(), "é");
  EXPECT_TRUE(all.at("f").get<bool>());
  EXPECT_EQ(all.at("l").get<std::vector<int32_t>>(), (std::vector<int32_t>{3, 1}));
  EXPECT_EQ(all.at("l").get<std::set<int32_t>>(), (std::set<int32_t>{1, 3}));
  EXPECT_EQ(all.value("none", std::string("absent")), "absent");
  EXPECT_EQ(all.value("n", int64_t{7}), -3);
}

TEST(JsonValue, FindsMembersOneByOneAndAll) {
  const nlohmann::json document =
      read_json(R"({"null": null, "one": {"b": [1, 2]}, "counts": {"x": 1, "y": 2}})");
  const JsonValue all(document);
  EXPECT_FALSE(all.find("none"));
  EXPECT_FALSE(all.find("null"));
  const auto only = all.find("one")->only();
  const JsonValue<>& value = only.second;
  EXPECT_EQ(only.first, "b");
  EXPECT_EQ(value.path(), "one.b");
  EXPECT_EQ(value.size(), 2U);
  using Counts = std::map<std::string, int>;
  EXPECT_EQ(all.at("counts").get<Counts>(), (Counts{{"x", 1}, {"y", 2}}));
  EXPECT_THAT([&] { all.only(); }, testing::ThrowsMessage<JsonError>(HasSubstr("one member")));
  EXPECT_THAT([&] { value.members([](const std::string&, const JsonValue<>&) {}); },
              testing::ThrowsMessage<JsonError>("one.b is [1,2], not an object"));
}

TEST(JsonValue, RefusesInTheWordsOfItsReader) {
  const nlohmann::json document = read_json(R"({"n": 3})");
  const JsonValue all(document), n = all.at("n");
  EXPECT_EQ(n.whole(1, 3), 3);
  EXPECT_THAT([&] { n.whole(4, 9); },
              testing::ThrowsMessage<JsonError>("n is 3, not a whole number from 4 to 9"));
  EXPECT_THAT([&] { n.refuse("is odd", "an even one"); },
              testing::ThrowsMessage<JsonError>("n is odd; seen: 3; accepted: an even one"));
}

TEST(JsonValue, NamesTheEndOfALongPathWithoutControlCharacters) {
  const nlohmann::json document = {{std::string(1000, 'a'), {{"b\x1b", 1}}}};
  const JsonValue<> value = JsonValue(document).only().second.only().second;
  try {
    value.text();
    ADD_FAILURE() << "it was read";
  } catch (const JsonError& error) {
    EXPECT_THAT(error.what(),
                AllOf(testing::StartsWith("...aaa"), HasSubstr("a.b\\u001b is 1, not a text")));
    EXPECT_LT(std::string(error.what()).size(), 300U);
  }
}

TEST(JsonValue, RefusesWhatIsNoWholeNumberOfItsType) {
  for (const char* number : {"2.5", "2.0", "1e3", "-1", "4294967296", "18446744073709551616",
                             "null", "true", "\"3\"", "[3]", "{}"})
    EXPECT_THAT(complaint<uint32_t>((R"({"a": {"b": )" + std::string(number) + "}}").c_str()),
                AllOf(HasSubstr("a.b is "), HasSubstr("whole number from 0 to 4294967295")))
        << number;
  EXPECT_THAT(
      complaint<int64_t>(R"({"a": {"b": 9223372036854775808}})"),
      HasSubstr("a.b is 9223372036854775808, not a whole number from -9223372036854775808"));
  EXPECT_EQ(complaint<int64_t>(R"({"a": {"b": 9223372036854775807}})"), "none");
}

TEST(JsonValue, RefusesOtherKindsWithPathAndValue) {
  EXPECT_EQ(complaint<bool>(R"({"a": {"b": 1}})"), "a.b is 1, not true or false");
  EXPECT_EQ(complaint<double>(R"({"a": {"b": "1"}})"), R"(a.b is "1", not a number)");
  EXPECT_EQ(complaint<std::string>(R"({"a": {"b": null}})"), "a.b is null, not a text");
  EXPECT_EQ(complaint<std::vector<int>>(R"({"a": {"b": 1}})"), "a.b is 1, not a list");
  EXPECT_THAT(complaint<std::vector<int>>(R"({"a": {"b": [0, 0.5]}})"), HasSubstr("a.b[1] is 0.5"));
  EXPECT_EQ(complaint<int>(R"({"a": {}})"), "a.b is missing");
  const nlohmann::json list = read_json("[[1]]");
  EXPECT_THAT([&] { JsonValue(list).at(0).at(1); },
              testing::ThrowsMessage<JsonError>("[0] is [1], not a list of 2 or more"));
  EXPECT_EQ(complaint<int>(R"({"a": [1]})"), "a is [1], not an object");
  EXPECT_EQ(complaint<int>("7"), "the document is 7, not an object");
}

}  // namespace
}  // namespace demi
