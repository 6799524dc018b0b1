#include "demi/core/dtype.h"

#include <gtest/gtest.h>

#include "demi/core/error.h"

namespace demi {
namespace {

TEST(Dtype, FieldsFillTheStorageAndTheBiasIsTheMiddle) {
  for (const Format& format : formats()) {
    if (format.dtype != Dtype::tf32) {
      const int bits = format.dtype == Dtype::fp4_e2m1 ? 4 : 8 * format.bytes;
      EXPECT_EQ(1 + format.exponent_bits + format.fraction_bits, bits) << format.name;
    }
    EXPECT_EQ(format.bias, (1 << (format.exponent_bits - 1)) - 1) << format.name;
    EXPECT_EQ(&format_of(format.dtype), &format);
    EXPECT_EQ(parse_dtype(format.name), format.dtype);
  }
}

TEST(Dtype, KnowsPyTorchsNames) {
  EXPECT_EQ(parse_dtype("bfloat16"), Dtype::bf16);
  EXPECT_EQ(parse_dtype("Half"), Dtype::fp16);
  EXPECT_EQ(parse_dtype("float8_e4m3fn"), Dtype::fp8_e4m3);
  EXPECT_EQ(parse_dtype("float4_e2m1fn_x2"), Dtype::fp4_e2m1);
  EXPECT_FALSE(find_dtype("int8"));
}

TEST(Dtype, KnowsTheNamesOfCAndOfTheStandards) {
  EXPECT_EQ(parse_dtype("double"), Dtype::fp64);
  EXPECT_EQ(parse_dtype("single"), Dtype::fp32);
  EXPECT_EQ(parse_dtype("half"), Dtype::fp16);
  EXPECT_EQ(parse_dtype("binary64"), Dtype::fp64);
  EXPECT_EQ(parse_dtype("binary32"), Dtype::fp32);
  EXPECT_EQ(parse_dtype("binary16"), Dtype::fp16);
  EXPECT_EQ(parse_dtype("E4M3"), Dtype::fp8_e4m3);
  EXPECT_EQ(parse_dtype("e4m3fn"), Dtype::fp8_e4m3);
  EXPECT_EQ(parse_dtype("e5m2"), Dtype::fp8_e5m2);
  EXPECT_EQ(parse_dtype("E2M1"), Dtype::fp4_e2m1);
}

TEST(Dtype, AWrongNameIsAnsweredWithTheNearest) {
  try {
    parse_dtype("pf16");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean fp16?"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace demi
