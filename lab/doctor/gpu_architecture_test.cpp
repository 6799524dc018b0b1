#include <gtest/gtest.h>

#include <string>

#include "lab/doctor/formats.h"

namespace demi::doctor {
namespace {

// NVIDIA's table of GPUs and compute capabilities, and of tensor cores' formats by capability
// (CUDA C++ programming guide).
TEST(GpuArchitecture, HasTheNamesAndFormatsOfNvidiasTable) {
  const struct {
    int capability;
    const char* name;
    bool fp16, tf32_and_bf16, fp8;
  } table[] = {{35, "Kepler", false, false, false},    {52, "Maxwell", false, false, false},
               {60, "Pascal", false, false, false},    {61, "Pascal", false, false, false},
               {70, "Volta", true, false, false},      {75, "Turing", true, false, false},
               {80, "Ampere", true, true, false},      {86, "Ampere", true, true, false},
               {89, "Ada Lovelace", true, true, true}, {90, "Hopper", true, true, true},
               {100, "Blackwell", true, true, true},   {120, "Blackwell", true, true, true}};
  for (const auto& row : table) {
    const GpuArchitecture a = gpu_architecture(row.capability);
    EXPECT_EQ(a.name, row.name) << row.capability;
    EXPECT_EQ(a.fp16, row.fp16) << row.capability;
    EXPECT_EQ(a.tf32, row.tf32_and_bf16) << row.capability;
    EXPECT_EQ(a.bf16, row.tf32_and_bf16) << row.capability;
    EXPECT_EQ(a.fp8, row.fp8) << row.capability;
  }
}

TEST(GpuArchitecture, ReadsTheDriversText) {
  EXPECT_EQ(gpu_architecture("8.9").name, "Ada Lovelace");
  EXPECT_EQ(gpu_architecture("12.0").name, "Blackwell");
  for (const char* text : {"", "9", "9.", ".0", "9.0a", "-9.0"}) {
    EXPECT_EQ(gpu_architecture(text).name, "unknown") << text;
    EXPECT_FALSE(gpu_architecture(text).fp16) << text;
  }
}

}  // namespace
}  // namespace demi::doctor
