#include "lab/settings/norm_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "demi/core/error.h"

namespace demi::settings {
namespace {

using ::testing::HasSubstr;

TEST(NormLimitOf, ANumberIsABoundAndWithSdDeviations) {
  EXPECT_EQ(norm_limit_of("5", "")->bound, 5);
  EXPECT_TRUE(std::isinf(norm_limit_of("5", "")->deviations));
  EXPECT_EQ(norm_limit_of("2.5sd", "")->deviations, 2.5);
  EXPECT_TRUE(std::isinf(norm_limit_of("2.5sd", "")->bound));
  EXPECT_EQ(norm_limit_of("1e-3", "")->bound, 1e-3);
  EXPECT_FALSE(norm_limit_of("0", ""));
  EXPECT_FALSE(norm_limit_of("0.0", ""));
}

TEST(NormLimitOf, RefusesTheRest) {
  for (const char* wrong :
       {"", "-1", "nan", "inf", "sd", "0sd", "5 sd", "5s", "5sdx", "5,3", "1e999"})
    try {
      norm_limit_of(wrong, "--skip-norm-above");
      ADD_FAILURE() << wrong;
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("--skip-norm-above"));
      EXPECT_THAT(error.what(), HasSubstr("standard deviations"));
    }
}

}  // namespace
}  // namespace demi::settings
