#include "lab/values/setting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "demi/core/error.h"

namespace demi::values {
namespace {

using ::testing::HasSubstr;

enum class Shape { round, square };

struct Cup {
  int64_t handles = 1;
  double litres = 0.25;
  std::string name = "mug";
  bool is_full = false;
  Shape shape = Shape::round;
};

struct Shelf {
  Cup cup;
  Texts texts;
};

const Setting<Cup> kHandles = whole("handles", &Cup::handles, 0, "handles of a cup", 4);
const Setting<Cup> kLitres = real("litres", &Cup::litres, 0, 2, "volume");
const Setting<Cup> kName = words("name", &Cup::name, "what it is called");
const Setting<Cup> kFull = flag("full", &Cup::is_full, "whether it is full");
const Setting<Cup> kShape = one_of<Cup, Shape>(
    "shape", &Cup::shape, {{"round", Shape::round}, {"square", Shape::square}}, "its form");

std::string after(const Setting<Cup>& setting, std::string_view text) {
  Cup cup;
  try {
    setting.set(cup, text, "--" + setting.name);
  } catch (const UsageError& error) {
    return error.what();
  }
  return setting.get(cup);
}

TEST(Setting, ReadsAndWritesAValueOfEachKind) {
  EXPECT_EQ(after(kHandles, "2"), "2");
  EXPECT_EQ(after(kLitres, "1e-3"), "0.001");
  EXPECT_EQ(after(kName, "glass"), "glass");
  EXPECT_EQ(after(kFull, "yes"), "true");
  EXPECT_EQ(after(kShape, "square"), "square");
  EXPECT_EQ(kShape.get(Cup()), "round");
}

TEST(Setting, RefusesWhatIsNoValue) {
  EXPECT_THAT(after(kHandles, "two"), HasSubstr("[--handles] not a number; seen: two"));
  EXPECT_THAT(after(kHandles, "5"), HasSubstr("too large; seen: 5; accepted: 0 to 4"));
  EXPECT_THAT(after(kHandles, "-1"), HasSubstr("too small"));
  EXPECT_THAT(after(kHandles, "1.0"), HasSubstr("a whole number"));
  EXPECT_THAT(after(kLitres, "3"), HasSubstr("accepted: 0 to 2"));
  EXPECT_THAT(after(kLitres, "nan"), HasSubstr("out of range"));
  EXPECT_THAT(after(real("weight", &Cup::litres, 0, kInfinity, ""), "inf"),
              HasSubstr("not finite"));
  EXPECT_THAT(after(kName, "p\xff"), HasSubstr("not UTF-8"));
  EXPECT_THAT(after(kFull, "half"), HasSubstr("neither true nor false"));
  EXPECT_THAT(after(kShape, "squre"), HasSubstr("did you mean square?"));
}

TEST(Setting, OverTextsKeepsWhatTheSettingTakesInItsOwnSpelling) {
  const Setting<Texts> litres = over_texts(kLitres, Cup{.litres = 0.5});
  Texts texts;
  EXPECT_EQ(litres.get(texts), "0.5");
  litres.set(texts, "1.50", "--litres");
  EXPECT_EQ(texts, (Texts{{"litres", "1.5"}}));
  EXPECT_EQ(litres.get(texts), "1.5");
  EXPECT_THROW(litres.set(texts, "3", "--litres"), UsageError);
  EXPECT_EQ(litres.get(texts), "1.5");
}

TEST(Setting, OfAMemberIsThatOfTheWhole) {
  Shelf shelf;
  of_member(&Shelf::cup, kShape).set(shelf, "square", "--shape");
  EXPECT_EQ(shelf.cup.shape, Shape::square);
  const Setting<Shelf> handles = of_member(&Shelf::texts, over_texts(kHandles, Cup()));
  handles.set(shelf, "3", "--handles");
  EXPECT_EQ(handles.get(shelf), "3");
  EXPECT_EQ(handles.type, "INT");
}

TEST(Values, EitherJoinsWords) {
  const std::vector<std::string> words{"a", "b", "c"};
  EXPECT_EQ(either(words), "a, b or c");
  EXPECT_EQ(either({words.data(), 2}, " and "), "a and b");
  EXPECT_EQ(either({words.data(), 1}), "a");
}

}  // namespace
}  // namespace demi::values
