#include "demi/train/every.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "demi/core/error.h"

namespace demi::train {
namespace {

TEST(Every, ReadsStepsEpochsAndTime) {
  EXPECT_EQ(Every::parse("400"), Every{.steps = 400});
  EXPECT_EQ(Every::parse("1epoch"), Every{.epochs = 1});
  EXPECT_EQ(Every::parse("12epochs"), Every{.epochs = 12});
  EXPECT_EQ(Every::parse("10min"), Every{.minutes = 10});
  EXPECT_EQ(Every::parse("0.5min"), Every{.minutes = 0.5});
  EXPECT_EQ(Every::parse("1.5h"), Every{.minutes = 90});
  EXPECT_EQ(Every::parse("9223372036854775807").steps, std::numeric_limits<int64_t>::max());
  for (const char* never : {"0", "0epochs", "0min"}) EXPECT_TRUE(Every::parse(never).is_never());
  EXPECT_FALSE(Every::parse("1").is_never());
}

TEST(Every, ReadsTimesOfSeveralUnits) {
  EXPECT_EQ(minutes_in("11h50m"), 11 * 60 + 50);
  EXPECT_EQ(minutes_in("1h30min"), 90);
  EXPECT_EQ(minutes_in("90s"), 1.5);
  EXPECT_EQ(minutes_in("1h1m30s"), 61.5);
  EXPECT_EQ(minutes_in("0.5m"), 0.5);
  EXPECT_EQ(Every::parse("1h30m"), Every{.minutes = 90});
  EXPECT_EQ(Every::parse("30s"), Every{.minutes = 0.5});
  for (const char* bad :
       {"", "1", "h", "1m1h", "1h1h", "1m2min", "1d", "1h ", "-1h", "1e3s", "nans"})
    EXPECT_EQ(minutes_in(bad), std::nullopt) << bad;
}

TEST(Every, BlanksTooManyAreSaid) {
  EXPECT_EQ(every_meant("1 epoch"), "1epoch");
  EXPECT_EQ(every_meant(" 1 h 30 m"), "1h30m");
  for (const char* other : {"1epoch", "", " ", "1 day", "one epoch"})
    EXPECT_EQ(every_meant(other), "") << other;
  try {
    Every::parse("2 epochs");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("did you mean 2epochs?"));
  }
}

TEST(Every, WritesWhatItReads) {
  for (const char* text : {"400", "1epoch", "2epochs", "10min", "0.25min", "0"})
    EXPECT_EQ(Every::parse(text).to_string(), text);
  for (const char* text : {"0.0006s", "0.1s", "7s", "99999999999999999999999h"}) {
    const Every every = Every::parse(text);
    EXPECT_EQ(Every::parse(every.to_string()), every) << every.to_string();
  }
}

TEST(Every, RefusesOtherTextAndSaysWhatItAccepts) {
  for (const char* bad :
       {"", "epoch", "1.5epochs", "1.5", "-1", "1 epoch", "1e3min", "nan", "inf", "10 minutes", "h",
        ".", "1..5h", "9223372036854775808", "400x", "min10"}) {
    try {
      Every::parse(bad);
      ADD_FAILURE() << bad;
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("10min")) << bad;
      EXPECT_THAT(error.what(), ::testing::HasSubstr(bad));
    }
  }
}

}  // namespace
}  // namespace demi::train
