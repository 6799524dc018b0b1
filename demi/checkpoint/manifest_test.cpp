#include "demi/checkpoint/manifest.h"

#include <gmock/gmock.h>

#include <random>

#include "demi/checkpoint/checkpoint_testing.h"
#include "demi/core/crc32c.h"
#include "demi/core/error.h"

namespace demi::checkpoint {
namespace {

using testing::HasSubstr;

std::string summed_up(const std::string& body) { return body + closing_of_manifest(body); }

std::string refusal(const std::string& text) {
  try {
    parse_manifest("x/manifest.json", text);
  } catch (const DataError& error) {
    return error.what();
  }
  return "no DataError";
}

TEST(Manifest, KeepsEveryBitOfANumber) {
  std::mt19937_64 random(1);
  Manifest manifest;
  StateDict& numbers = manifest.numbers["all"];
  for (int i = 0; i < 20'000; ++i)
    numbers["n" + std::to_string(i)] = std::bit_cast<double>(random());
  int extreme = 0;
  for (const uint64_t bits :
       {0x0ULL, 0x8000000000000000ULL, 0x1ULL, 0x000FFFFFFFFFFFFFULL, 0x0010000000000000ULL,
        0x7FEFFFFFFFFFFFFFULL, 0x7FF0000000000000ULL, 0xFFF0000000000000ULL, 0x7FF0000000000001ULL,
        0x7FF8000000000000ULL, 0xFFF8000000000000ULL, 0xFFFFFFFFFFFFFFFFULL, 0x433FFFFFFFFFFFFFULL,
        0x4340000000000001ULL})
    numbers["extreme" + std::to_string(extreme++)] = std::bit_cast<double>(bits);
  EXPECT_TRUE(same_numbers(parse_manifest("x", to_text(manifest)).numbers.at("all"), numbers));
}

TEST(Manifest, RefusesANewerFormatAndSaysSo) {
  const std::string newer =
      R"({"format": "demi checkpoint", "format_version": 2, "demi": "9.0.0", "files": [])";
  const std::string said = refusal(summed_up(newer));
  EXPECT_THAT(said, HasSubstr("x/manifest.json was written by a newer demi"));
  EXPECT_THAT(said, HasSubstr("seen: format_version 2; accepted: at most 1"));
  // So is one with another checksum.
  EXPECT_THAT(refusal(newer + "}"), HasSubstr("newer demi"));
}

TEST(Manifest, RefusesAVersionThatNeverWas) {
  Manifest manifest{.step = 1};
  const std::string text = to_text(manifest), version = "\"format_version\": 1";
  for (const char* other : {"0", "-1", "1.5", "\"1\""}) {
    std::string body = text.substr(0, text.rfind(",\n"));
    body.replace(body.find(version), version.size(), std::string("\"format_version\": ") + other);
    EXPECT_THAT(refusal(body + closing_of_manifest(body)),
                HasSubstr(std::string("seen: format_version is ") + other));
  }
}

TEST(Manifest, RefusesOtherContentsWithARightChecksum) {
  const std::string head = R"({"format": "demi checkpoint", "format_version": 1, "demi": "0",)"
                           R"( "libtorch": "2", "step": )";
  const auto with = [&](const std::string& step, const std::string& numbers,
                        const std::string& files) {
    return refusal(summed_up(head + step + R"(, "text": {}, "numbers": )" + numbers +
                             R"(, "files": )" + files));
  };
  EXPECT_EQ(with("1", "{}", "{}"), "no DataError");
  for (const char* step :
       {"-1", "1.5", "\"1\"", "null", "9223372036854775808", "1e3", "18446744073709551616", "[]"})
    EXPECT_THAT(with(step, "{}", "{}"), HasSubstr("manifest.json")) << step;
  for (const char* numbers :
       {"[]", "7", R"({"a": 7})", R"({"a": {"b": "1"}})", R"({"a": {"b": "nan:1"}})",
        R"({"a": {"b": "nan:3ff0000000000000"}})", R"({"a": {"b": null}})", R"({"a": {"b": {}}})"})
    EXPECT_THAT(with("1", numbers, "{}"), HasSubstr("manifest.json")) << numbers;
  const auto file = [](const std::string& bytes, const std::string& sum) {
    return R"({"f": {"bytes": )" + bytes + R"(, "crc32c": )" + sum + R"(, "tensors": {}}})";
  };
  EXPECT_EQ(with("1", "{}", file("1152921504606846976", "\"00000000\"")), "no DataError");
  for (const char* bytes : {"-1", "1e3", "null", "18446744073709551615"})
    EXPECT_THAT(with("1", "{}", file(bytes, "\"00000000\"")), HasSubstr("manifest.json")) << bytes;
  for (const char* sum : {"0", "\"0\"", "\"0000000g\"", "\"000000000\"", "\"\"", "null"})
    EXPECT_THAT(with("1", "{}", file("1", sum)), HasSubstr("manifest.json")) << sum;
  EXPECT_THAT(refusal(summed_up(R"({"format": "other", "format_version": 1)")),
              HasSubstr("format is another kind; seen: \"other\""));
  EXPECT_THAT(refusal(summed_up(R"({"format_version": 1)")), HasSubstr("no manifest"));
  EXPECT_THAT(refusal(summed_up("[1")), HasSubstr("manifest.json"));
  EXPECT_THAT(refusal(summed_up(std::string(100'000, '['))), HasSubstr("manifest.json"));
  // A whole document, whose value would be printed, which recurses.
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  EXPECT_THAT(with(deep, "{}", "{}"), HasSubstr("more than 512 deep"));
  EXPECT_THAT(refusal(""), HasSubstr("does not end with its checksum"));
}

}  // namespace
}  // namespace demi::checkpoint
