#include "demi/monitor/format_loss.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <vector>

namespace demi::monitor {
namespace {

FormatLoss loss_of(const std::vector<float>& numbers, c10::ScalarType format) {
  const at::Tensor x = at::tensor(numbers);
  double greatest = 0;
  for (const float number : numbers)
    if (std::isfinite(number)) greatest = std::max(greatest, double(std::fabs(number)));
  return format_loss(exponent_histogram(x), exponent_histogram(x.to(format)), greatest, format);
}

// IEEE 754-2019, section 4.3.1: what rounds to 2^16 overflows, and 65520 lies halfway from 65504.
TEST(FormatLoss, CountsWhatFp16MakesOfNumbers) {
  const float half_of_least = std::ldexp(1.0F, -25);
  const FormatLoss loss =
      loss_of({0.0F, -0.0F, 65519.996F, 65520.0F, -1e6F, std::numeric_limits<float>::infinity(),
               half_of_least, std::nextafter(half_of_least, 1.0F), std::ldexp(1.0F, -15),
               std::ldexp(1.0F, -14), 1.0F},
              torch::kHalf);
  EXPECT_EQ(loss.elements, 11);
  EXPECT_EQ(loss.zeros, 2);
  EXPECT_EQ(loss.overflowed, 2);  // 65520, -1e6; Inf was there before
  EXPECT_EQ(loss.flushed, 1);     // 2^-25 is a tie, and goes to the even 0
  EXPECT_EQ(loss.subnormal, 2);
  EXPECT_EQ(loss.greatest, 1e6);
  EXPECT_EQ(loss.least_exponent, -25);
  EXPECT_TRUE(loss.harms());
}

TEST(FormatLoss, CountsWhatBf16MakesOfNumbers) {
  const FormatLoss loss =
      loss_of({65520.0F, 1e30F, 3.3961775e38F, 3.39e38F, std::ldexp(1.0F, -126)}, torch::kBFloat16);
  EXPECT_EQ(loss.overflowed, 1);
  EXPECT_EQ(loss.flushed, 0);
  EXPECT_EQ(loss.subnormal, 0);
}

TEST(FormatLoss, OverflowBeginsHalfwayToTheNextPowerOfTwo) {
  EXPECT_EQ(overflow_threshold(torch::kHalf), 65520);
  EXPECT_EQ(overflow_threshold(torch::kBFloat16), std::ldexp(2 - std::ldexp(1, -8), 127));
  for (const auto format : {torch::kHalf, torch::kBFloat16}) {
    const auto from = static_cast<float>(overflow_threshold(format));
    EXPECT_TRUE(at::tensor({from}).to(format).isinf().item<bool>());
    EXPECT_FALSE(at::tensor({std::nextafter(from, 0.0F)}).to(format).isinf().item<bool>());
  }
}

TEST(FormatLoss, TheShareOfTheNormThatIsLost) {
  const float small = std::ldexp(1.5F, -30);
  EXPECT_EQ(loss_of({1.0F, 2.0F}, torch::kHalf).lost(), 0);
  EXPECT_EQ(loss_of({small, small}, torch::kHalf).lost(), 1);
  EXPECT_EQ(loss_of({0.0F}, torch::kHalf).lost(), 0);
  EXPECT_LT(loss_of({small, small, 1.0F}, torch::kHalf).lost(), 1e-8);
}

// 2^-30 times 2^10 is 2^-20, which fp16 keeps with fewer digits.
TEST(FormatLoss, OfScaledNumbers) {
  const ExponentHistogram counts =
      exponent_histogram(at::tensor({std::ldexp(1.0F, -30), std::ldexp(1.0F, -40), 16.0F, 60.0F}));
  const FormatLoss plain = format_loss(counts, 1, 60, torch::kHalf);
  EXPECT_EQ(plain.flushed, 2);
  EXPECT_EQ(plain.subnormal, 0);
  EXPECT_EQ(plain.overflowed, 0);
  const FormatLoss scaled = format_loss(counts, 1024, 60, torch::kHalf);
  EXPECT_EQ(scaled.flushed, 1);
  EXPECT_EQ(scaled.subnormal, 1);
  EXPECT_EQ(scaled.overflowed, 0);
  EXPECT_EQ(scaled.greatest, 61440) << "60 x 1024";
  EXPECT_EQ(scaled.least_exponent, -30) << "2^-40 x 2^10";
  EXPECT_EQ(format_loss(counts, 2048, 60, torch::kHalf).overflowed, 1);
  EXPECT_EQ(format_loss(counts, 8192, 60, torch::kHalf).overflowed, 2);
  // The greatest number decides in the bin of 65520, not the histogram.
  const ExponentHistogram in_bin = exponent_histogram(at::tensor({65510.0F, 65530.0F}));
  EXPECT_EQ(format_loss(in_bin, 1, 65530, torch::kHalf).overflowed, 1);
  EXPECT_EQ(format_loss(in_bin, 1, 65510, torch::kHalf).overflowed, 0);
}

TEST(FormatLoss, TheScaleIsHalvedUntilNothingOverflows) {
  EXPECT_EQ(fitting_scale(65536, 0, torch::kHalf), 65536);
  EXPECT_EQ(fitting_scale(65536, 0.5, torch::kHalf), 65536);
  EXPECT_EQ(fitting_scale(65536, 1, torch::kHalf), 32768);  // 65536 itself overflows
  EXPECT_EQ(fitting_scale(65536, 65519, torch::kHalf), 1);
  EXPECT_EQ(fitting_scale(65536, 1e9, torch::kHalf), 1);
  EXPECT_EQ(fitting_scale(100, 1000, torch::kHalf), 50);
  EXPECT_EQ(fitting_scale(1.5, 65519, torch::kHalf), 1);
}

TEST(FormatLoss, AddsUpOverSteps) {
  FormatLoss sum = loss_of({1.0F, 0.25F}, torch::kHalf);
  FormatLoss later = loss_of({0.0F}, torch::kHalf);
  sum += later;
  EXPECT_EQ(sum.least_exponent, -2);  // of the numbers that there are
  later = loss_of({1e5F}, torch::kHalf);
  later.first_overflow = 3;
  sum += later;
  later.first_overflow = 4;
  sum += later;
  EXPECT_EQ(sum.elements, 5);
  EXPECT_EQ(sum.zeros, 1);
  EXPECT_EQ(sum.overflowed, 2);
  EXPECT_EQ(sum.greatest, 1e5);
  EXPECT_EQ(sum.first_overflow, 3);
  EXPECT_EQ(sum.least_exponent, -2);
}

// Of every count, and in both orders: a later step may be the milder one.
TEST(FormatLoss, ALaterStepMayBeTheMilderOne) {
  const FormatLoss hard =
      loss_of({std::ldexp(1.0F, 20), std::ldexp(1.0F, -30), std::ldexp(1.0F, -20)}, torch::kHalf);
  const FormatLoss mild = loss_of({2.0F, 4.0F}, torch::kHalf);
  FormatLoss first = hard, last = mild;
  first += mild;
  last += hard;
  for (const FormatLoss& sum : {first, last}) {
    EXPECT_EQ(sum.elements, 5);
    EXPECT_EQ(sum.greatest, std::ldexp(1, 20));
    EXPECT_EQ(sum.least_exponent, -30);
    EXPECT_EQ(sum.overflowed, 1);
    EXPECT_EQ(sum.flushed, 1);
    EXPECT_EQ(sum.subnormal, 1);
  }
  const float small = std::ldexp(1.0F, -30);
  FormatLoss half = loss_of({small}, torch::kHalf);
  half += loss_of({small, std::ldexp(1.0F, -10)}, torch::kHalf);
  EXPECT_DOUBLE_EQ(half.energy, 7.0 / 3 * (2 * std::ldexp(1, -60) + std::ldexp(1, -20)));
  EXPECT_DOUBLE_EQ(half.flushed_energy, 7.0 / 3 * 2 * std::ldexp(1, -60));
}

}  // namespace
}  // namespace demi::monitor
