#include "demi/autocast/slow_dtype.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace demi {
namespace {

using c10::ScalarType;
using testing::HasSubstr;

TEST(SlowDtype, Bf16OnCudaNeedsAmpere) {
  for (const int capability : {52, 70, 75})
    EXPECT_THAT(why_slow_on_cuda(capability, ScalarType::BFloat16), HasSubstr("8.0")) << capability;
  for (const int capability : {80, 86, 90, 100, 120})
    EXPECT_EQ(why_slow_on_cuda(capability, ScalarType::BFloat16), "") << capability;
}

TEST(SlowDtype, Fp16OnCuda) {
  EXPECT_THAT(why_slow_on_cuda(52, ScalarType::Half), HasSubstr("5.3"));
  EXPECT_THAT(why_slow_on_cuda(61, ScalarType::Half), HasSubstr("1/64"));
  for (const int capability : {53, 60, 62, 70, 75, 80, 90})
    EXPECT_EQ(why_slow_on_cuda(capability, ScalarType::Half), "") << capability;
}

TEST(SlowDtype, Fp32IsNeverSlowAndOtherDevicesSayNothing) {
  EXPECT_EQ(why_slow_on_cuda(50, ScalarType::Float), "");
  EXPECT_EQ(why_slow(c10::DeviceType::CPU, ScalarType::Float), "");
  EXPECT_EQ(why_slow(c10::DeviceType::XPU, ScalarType::Half), "");
}

}  // namespace
}  // namespace demi
