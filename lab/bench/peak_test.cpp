#include "lab/bench/peak.h"

#include <gtest/gtest.h>

namespace demi::bench {
namespace {

// 10^15 a second is more than a processor does, 10^6 less.
TEST(Peak, IsOfTheSizeOfAProcessors) {
  for (const char* name : {"fp32", "tf32", "bf16", "bf16-true"}) {
    const double peak = peak_flop_per_second(parse_precision(name), c10::kCPU);
    EXPECT_GT(peak, 1e6) << name;
    EXPECT_LT(peak, 1e15) << name;
  }
  EXPECT_EQ(peak_flop_per_second(parse_precision("fp64"), c10::kCPU), 0);
}

}  // namespace
}  // namespace demi::bench
