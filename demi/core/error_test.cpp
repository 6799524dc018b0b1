#include "demi/core/error.h"

#include <gtest/gtest.h>

namespace demi {
namespace {

TEST(Error, SaysEveryPartInOrder) {
  const UsageError error({.where = "optim.SGD",
                          .what = "the learning rate is negative",
                          .seen = "-0.1",
                          .accepted = "0 or more",
                          .advice = "pass SGDOptions(0.1)"});
  EXPECT_STREQ(error.what(),
               "[optim.SGD] the learning rate is negative; seen: -0.1; accepted: 0 or more; pass "
               "SGDOptions(0.1)");
}

TEST(Error, LeavesOutWhatIsNotGiven) {
  EXPECT_EQ(describe({.where = "data.IDX", .what = "no such file"}), "[data.IDX] no such file");
}

TEST(Error, KindsAreDistinctAndShareABase) {
  EXPECT_THROW(throw DataError({.what = "x"}), Error);
  EXPECT_FALSE((std::is_base_of_v<UsageError, DataError>));
}

TEST(Error, IsOfTheKindThatIsRefused) {
  EXPECT_THROW(refuse({.what = "x"}), UsageError);
  EXPECT_THROW(refuse<DataError>({.what = "x"}), DataError);
  EXPECT_NO_THROW(require(true, {.what = "x"}));
  EXPECT_THROW(require(false, {.what = "x"}), UsageError);
  EXPECT_THROW(require<DataError>(false, {.what = "x"}), DataError);
}

}  // namespace
}  // namespace demi
