#include "lab/number/float_arithmetic.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>

#include "lab/number/formats_testing.h"

namespace demi::number {
namespace {

constexpr Operation kOperations[] = {Operation::kAdd, Operation::kSubtract, Operation::kMultiply,
                                     Operation::kDivide};

template <class Float>
Float by_processor(Operation operation, Float a, Float b) {
  switch (operation) {
    case Operation::kAdd:
      return a + b;
    case Operation::kSubtract:
      return a - b;
    case Operation::kMultiply:
      return a * b;
    default:
      return a / b;
  }
}

// Special numbers, numbers near each other, and any.
template <class Word>
Word operand(std::mt19937_64& random, Word other, Word infinity) {
  constexpr int kSign = 8 * sizeof(Word) - 1;
  const auto sign = static_cast<Word>(Word(random() & 1) << kSign);
  const Word special[] = {
      0, 1, 2, infinity, Word(infinity - 1), Word(infinity + 1), Word(infinity >> 1)};
  switch (random() % 4) {
    case 0:
      return sign | special[random() % 7];
    case 1:
      return static_cast<Word>(other ^ (random() & 0xFF)) ^ sign;
    case 2:
      return static_cast<Word>(sign | (static_cast<Word>(random()) >> (random() % 40 % kSign + 1)));
    default:
      return static_cast<Word>(random());
  }
}

template <class Float, class Word>
void expect_as_processor(const Format& format, Word infinity) {
  std::mt19937_64 random(7);
  Word a = 0;
  for (int i = 0; i < 30000; ++i) {
    a = operand<Word>(random, a, infinity);
    const Word b = operand<Word>(random, a, infinity);
    for (const Operation operation : kOperations) {
      const auto theirs = by_processor(operation, std::bit_cast<Float>(a), std::bit_cast<Float>(b));
      const Result ours = apply(format, operation, a, b);
      if (std::isnan(theirs)) {
        ASSERT_EQ(kind_of(format, ours.bits), Kind::kNaN) << a << static_cast<char>(operation) << b;
      } else {
        ASSERT_EQ(ours.bits, std::bit_cast<Word>(theirs)) << a << static_cast<char>(operation) << b;
      }
    }
  }
}

TEST(FloatArithmetic, IsTheProcessorsInFp64) {
  expect_as_processor<double, std::uint64_t>(kFp64, 0x7FF0000000000000);
}

TEST(FloatArithmetic, IsTheProcessorsInFp32) {
  expect_as_processor<float, std::uint32_t>(kFp32, 0x7F800000);
}

TEST(FloatArithmetic, KeepsTheExactResult) {
  const Result result = apply(kFp16, Operation::kAdd, 0x6800, 0x3C00);  // 2048 + 1
  EXPECT_EQ(result.bits, 0x6800U);
  ASSERT_TRUE(result.exact);
  EXPECT_EQ(error_in_ulp(kFp64, round_to(kFp64, *result.exact), *result.exact), 0);
  EXPECT_EQ(double_of(kFp64, round_to(kFp64, *result.exact)), 2049);
  EXPECT_FALSE(apply(kFp16, Operation::kDivide, 0x3C00, 0x0000).exact);
  EXPECT_FALSE(apply(kFp16, Operation::kAdd, 0x7C00, 0x3C00).exact);
}

TEST(FloatArithmetic, NaNKeepsItsSignAndLosesItsPayload) {
  EXPECT_EQ(apply(kFp16, Operation::kAdd, 0xFC01, 0x3C00).bits, 0xFE00U);
  EXPECT_EQ(apply(kFp16, Operation::kSubtract, 0x3C00, 0x7C01).bits, 0x7E00U);
  EXPECT_EQ(apply(kFp16, Operation::kDivide, 0x0000, 0x8000).bits, 0x7E00U);
}

TEST(FloatArithmetic, AFormatWithoutInfinityGivesNaN) {
  EXPECT_EQ(apply(kE4m3, Operation::kDivide, 0x38, 0x00).bits, 0x7FU) << "1 / 0";
  EXPECT_EQ(apply(kE4m3, Operation::kMultiply, 0x7E, 0xB9).bits, 0xFFU) << "448 × -1.125 = -504";
  EXPECT_EQ(apply(kE4m3, Operation::kAdd, 0x7E, 0x58).bits, 0x7EU) << "448 + 16 = 464, a tie";
}

}  // namespace
}  // namespace demi::number
