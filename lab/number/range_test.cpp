#include "lab/number/range.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "lab/number/float_bits.h"

namespace demi::number {
namespace {

double to_double(const ExactNumber& x) {
  const Format& fp64 = format_of(Dtype::fp64);
  return double_of(fp64, round_to(fp64, x));
}

template <class Float>
void expect_limits(Dtype dtype) {
  using Limits = std::numeric_limits<Float>;
  const Range range = range_of(format_of(dtype));
  EXPECT_EQ(range.bytes, static_cast<int>(sizeof(Float)));
  EXPECT_EQ(to_double(range.lowest), Limits::lowest());
  EXPECT_EQ(to_double(range.largest), Limits::max());
  EXPECT_EQ(to_double(range.smallest_normal.value()), Limits::min());
  EXPECT_EQ(to_double(range.smallest_denormal.value()), Limits::denorm_min());
  EXPECT_EQ(to_double(range.epsilon.value()), Limits::epsilon());
  EXPECT_FALSE(range.step);
}

TEST(Range, OfFloatAndDoubleIsTheCompilers) {
  expect_limits<float>(Dtype::fp32);
  expect_limits<double>(Dtype::fp64);
}

// fp16: IEEE 754-2019, table 3.5. bf16: fp32's exponents with 7 bits of fraction. FP8: the OCP's
// OFP8, table 1.
TEST(Range, OfTheShortFormatsIsTheStandards) {
  const auto expect = [](Dtype dtype, double largest, double normal, double denormal,
                         double epsilon) {
    const Range range = range_of(format_of(dtype));
    EXPECT_EQ(to_double(range.largest), largest) << range.name;
    EXPECT_EQ(to_double(range.lowest), -largest) << range.name;
    EXPECT_EQ(to_double(range.smallest_normal.value()), normal) << range.name;
    EXPECT_EQ(to_double(range.smallest_denormal.value()), denormal) << range.name;
    EXPECT_EQ(to_double(range.epsilon.value()), epsilon) << range.name;
  };
  expect(Dtype::tf32, 0x1.ffcp127, 0x1p-126, 0x1p-136, 0x1p-10);
  expect(Dtype::fp16, 65504, 0x1p-14, 0x1p-24, 0x1p-10);
  expect(Dtype::bf16, 0x1.fep127, 0x1p-126, 0x1p-133, 0x1p-7);
  expect(Dtype::fp8_e4m3, 448, 0x1p-6, 0x1p-9, 0x1p-3);
  expect(Dtype::fp8_e5m2, 57344, 0x1p-14, 0x1p-16, 0x1p-2);
  expect(Dtype::fp4_e2m1, 6, 1, 0.5, 0.5);
}

TEST(Range, OfIntegersAndFixedPointIsTwosComplement) {
  const std::vector<Range> all = ranges({&format_of(Dtype::fp16)}, {{8, 8}});
  ASSERT_EQ(all.size(), 5U);
  const char* names[] = {"fp16", "int8", "int16", "int32", "fixed 8.8"};
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(all[i].name, names[i]);
  EXPECT_EQ(to_double(all[1].lowest), std::numeric_limits<std::int8_t>::min());
  EXPECT_EQ(to_double(all[2].largest), std::numeric_limits<std::int16_t>::max());
  EXPECT_EQ(to_double(all[3].largest), std::numeric_limits<std::int32_t>::max());
  EXPECT_EQ(to_double(all[3].lowest), std::numeric_limits<std::int32_t>::min());
  EXPECT_EQ(all[1].bytes, 1);
  EXPECT_EQ(all[3].bytes, 4);
  EXPECT_EQ(to_double(all[3].step.value()), 1);
  EXPECT_EQ(to_double(all[4].lowest), -128);
  EXPECT_EQ(to_double(all[4].largest), 128 - 1.0 / 256);
  EXPECT_EQ(to_double(all[4].step.value()), 1.0 / 256);
  EXPECT_EQ(all[4].bytes, 2);
  EXPECT_FALSE(all[4].epsilon);
  EXPECT_EQ(range_of("", {3, 6}).bytes, 2) << "9 bits";
}

}  // namespace
}  // namespace demi::number
