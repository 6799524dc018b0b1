#include "demi/core/json.h"

#include <gmock/gmock.h>

#include <string>

namespace demi {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

std::string nested(std::size_t depth, const std::string& open, const std::string& close) {
  std::string text;
  for (std::size_t i = 0; i < depth; ++i) text += open;
  text += "1";
  for (std::size_t i = 0; i < depth; ++i) text += close;
  return text;
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
  for (const char* text : {"", "{", "[1,]", "{\"a\" 1}", "nul"})
    EXPECT_THROW(read_json(text), JsonError) << text;
}

}  // namespace
}  // namespace demi
