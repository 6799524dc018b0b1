#include "lab/doctor/formats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace demi::doctor {
namespace {

using ::testing::HasSubstr;

const Format& named(const std::vector<Format>& formats, const std::string& dtype) {
  return *std::ranges::find_if(formats, [&](const Format& f) { return f.dtype == dtype; });
}

TEST(Formats, OfAProcessorFollowItsInstructions) {
  const auto old = formats_of(InstructionSet{.avx2 = true}, Bf16Products::fp32);
  EXPECT_EQ(named(old, "fp32").unit, "AVX2");
  EXPECT_FALSE(named(old, "bf16").has_unit);
  EXPECT_THAT(named(old, "bf16").unit, HasSubstr("through FP32"));
  const InstructionSet avx512_bf16{.avx2 = true, .avx512 = true, .avx512_bf16 = true};
  const auto zen4 = formats_of(avx512_bf16, Bf16Products::bf16);
  EXPECT_TRUE(named(zen4, "bf16").has_unit);
  EXPECT_FALSE(named(zen4, "fp16").has_unit);
  const auto without_amx = formats_of(avx512_bf16, Bf16Products::fp32);
  EXPECT_FALSE(named(without_amx, "bf16").has_unit);
  EXPECT_EQ(named(without_amx, "bf16").unit, "AVX512_BF16, not used: through FP32");
  EXPECT_EQ(named(formats_of(InstructionSet{.avx2 = true}, Bf16Products::bf16), "bf16").unit,
            "no BF16 instructions: emulated by LibTorch");
  const auto newest = formats_of(
      InstructionSet{
          .avx2 = true, .avx512 = true, .avx512_bf16 = true, .avx512_fp16 = true, .amx_bf16 = true},
      Bf16Products::bf16);
  EXPECT_EQ(named(newest, "bf16").unit, "AMX-BF16");
  EXPECT_FALSE(named(newest, "fp16").has_unit);
  EXPECT_THAT(named(newest, "fp16").unit, HasSubstr("AVX512_FP16"));
}

// Tensor cores: fp16 from 7.0, tf32 and bf16 from 8.0, fp8 from 8.9 (CUDA C++ programming guide).
TEST(Formats, OfAGpuFollowItsComputeCapability) {
  const auto pascal = formats_of(gpu_architecture(61));
  EXPECT_FALSE(named(pascal, "fp16").has_unit);
  EXPECT_THAT(named(pascal, "fp16").unit, HasSubstr("7.0: a modest gain in time, or memory only"));
  const auto volta = formats_of(gpu_architecture(70));
  EXPECT_TRUE(named(volta, "fp16").has_unit);
  EXPECT_FALSE(named(volta, "bf16").has_unit);
  const auto hopper = formats_of(gpu_architecture(90));
  for (const char* dtype : {"fp16", "bf16", "tf32", "fp8"})
    EXPECT_TRUE(named(hopper, dtype).has_unit) << dtype;
}

TEST(Formats, AreMeasuredBesideFp32) {
  auto formats = formats_of(onednn_instruction_set(), bf16_products());
  measure(formats, c10::kCPU, 0.02);
  for (const Format& format : formats) {
    EXPECT_EQ(format.failure, "") << format.dtype;
    EXPECT_GT(format.tflops, 0) << format.dtype;
    EXPECT_GE(format.size, 256) << format.dtype;
  }
  EXPECT_EQ(named(formats, "fp32").over_fp32, 1);
}

TEST(Formats, AFormatThatCannotBeMeasuredSaysWhy) {
  std::vector<Format> formats{{.dtype = "fp32", .is_measured = true},
                              {.dtype = "fp7", .is_measured = true},
                              {.dtype = "fp8"}};
  measure(formats, c10::kCPU, 0.01);
  EXPECT_GT(formats[0].tflops, 0);
  EXPECT_THAT(formats[1].failure, HasSubstr("fp7"));
  EXPECT_EQ(formats[2].failure, "") << "it is not tried";
}

}  // namespace
}  // namespace demi::doctor
