#include "demi/distributed/liveness.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace demi::distributed {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr milliseconds kGone{2000};

RankState at(std::int64_t collectives, int silence_ms = 0, bool left = false) {
  return {{left, 1, collectives}, milliseconds(silence_ms)};
}

TEST(FindCulprits, TheSilentFirst) {
  EXPECT_EQ(find_culprits({at(7), at(7), at(7)}, kGone), std::nullopt);
  EXPECT_EQ(find_culprits({at(7), at(7, 1999)}, kGone), std::nullopt);
  EXPECT_THAT(*find_culprits({at(7), at(7, 2000), at(6, 0, true)}, kGone),
              AllOf(HasSubstr("rank 1:"), HasSubstr("2.0 s"), Not(HasSubstr("rank 2"))));
  EXPECT_THAT(*find_culprits({at(7), at(7, 9000), at(7), at(7, 9000)}, kGone),
              HasSubstr("ranks 1, 3:"));
  EXPECT_THAT(*find_culprits({at(7), at(7, 9000), at(7, 9000), at(7, 9000)}, kGone),
              HasSubstr("ranks 1 to 3:"));
}

TEST(FindCulprits, ThenThoseThatLeftThenThoseBehind) {
  EXPECT_THAT(*find_culprits({at(7), at(6), at(7, 0, true)}, kGone), HasSubstr("rank 2 left"));
  EXPECT_THAT(
      *find_culprits({at(7), at(5), at(7)}, kGone),
      AllOf(HasSubstr("rank 1 is alive"), HasSubstr("collective 5"), HasSubstr("7 elsewhere")));
  EXPECT_THAT(*find_culprits({at(7), at(5), at(5)}, kGone), HasSubstr("ranks 1, 2 are alive"));
}

TEST(Sign, TravelsAsText) {
  const Sign sign = Sign::parse(Sign{true, 12, 34}.text());
  EXPECT_TRUE(sign.has_left);
  EXPECT_EQ(sign.count, 12);
  EXPECT_EQ(sign.collectives, 34);
  EXPECT_EQ(Sign::parse("nonsense").count, 0);
}

}  // namespace
}  // namespace demi::distributed
