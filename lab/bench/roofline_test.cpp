#include "lab/bench/roofline.h"

#include <gtest/gtest.h>

#include "lab/bench/square_product.h"

namespace demi::bench {
namespace {

// Williams, Waterman and Patterson 2009: min(peak, bandwidth times operations a byte).
TEST(Roofline, IsThePeakOrWhatTheBytesLetThrough) {
  const Roofline machine{.tflops = 2, .copy_gb_per_s = 100};
  EXPECT_DOUBLE_EQ(attainable_tflops(machine, 1e9, 1e6), 2) << "1000 operations a byte";
  EXPECT_DOUBLE_EQ(attainable_tflops(machine, 1e9, 1e8), 1) << "10 operations a byte";
  EXPECT_DOUBLE_EQ(attainable_tflops(machine, 20, 1), 2) << "the ridge";
}

TEST(Roofline, ACopyAndEachKindOfProductCanBeMeasured) {
  EXPECT_GT(copy_gb_per_s(c10::kCPU), 0);
  for (const ProductKind& kind : product_kinds(c10::kCPU)) {
    const ProductRate rate = best_rate(kind, c10::kCPU, 0.01);
    EXPECT_GT(rate.tflops, 0) << kind.dtype;
    EXPECT_GE(rate.size, 256) << kind.dtype;
  }
}

TEST(SquareProduct, KindsAreThoseOfTheDevice) {
  const auto cpu = product_kinds(c10::kCPU), cuda = product_kinds(c10::kCUDA);
  EXPECT_EQ(cpu.size(), 5U) << "fp32, and fp16 and bf16 plain and in a region";
  EXPECT_EQ(cuda.size(), 6U) << "tf32 as well";
  EXPECT_EQ(cpu.front(), (ProductKind{"fp32"}));
}

TEST(SquareProduct, CountsOperationsAndBytes) {
  const SquareProduct fp32({"fp32"}, 10, c10::kCPU), bf16({"bf16", true}, 10, c10::kCPU);
  EXPECT_EQ(fp32.flop(), 2000);
  EXPECT_EQ(fp32.bytes(), 1200);
  EXPECT_EQ(bf16.bytes(), 600);
}

// The formats' unit roundoff is 2^-24, 2^-11 and 2^-8: a 16-bit result is off by about that, and an
// error of the test's own bound would be seen.
TEST(SquareProduct, TheErrorIsOfTheFormatsSize) {
  for (const ProductKind& kind : product_kinds(c10::kCPU)) {
    SquareProduct product(kind, 65, c10::kCPU);
    const double error = product.error();
    EXPECT_LE(error, error_bound(kind)) << kind.dtype;
    const double roundoff = kind.dtype == "fp32"   ? 0x1p-24
                            : kind.dtype == "fp16" ? 0x1p-11
                                                   : 0x1p-8;
    EXPECT_GE(error, roundoff / 16) << kind.dtype;
  }
}

}  // namespace
}  // namespace demi::bench
