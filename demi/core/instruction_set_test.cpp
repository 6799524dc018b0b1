#include "demi/core/instruction_set.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

namespace demi {
namespace {

// The kernel's list of flags is the other source.
bool kernel_lists(const std::string& flag) {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (!line.starts_with("flags")) continue;
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      if (word == flag) return true;
    }
    return false;
  }
  return false;
}

TEST(InstructionSet, AgreesWithTheKernelsList) {
  EXPECT_EQ(instruction_set().avx2, kernel_lists("avx2") && kernel_lists("fma"));
  EXPECT_EQ(instruction_set().avx512, kernel_lists("avx512f") && kernel_lists("avx512bw") &&
                                          kernel_lists("avx512dq") && kernel_lists("avx512vl"));
  EXPECT_EQ(instruction_set().avx512_bf16, kernel_lists("avx512_bf16"));
  EXPECT_EQ(instruction_set().amx_bf16, kernel_lists("amx_bf16"));
}

// The levels of oneDNN's documentation of ONEDNN_MAX_CPU_ISA.
TEST(InstructionSet, IsLimitedToOneDNNsLevel) {
  const InstructionSet all{
      .avx2 = true, .avx512 = true, .avx512_bf16 = true, .avx512_fp16 = true, .amx_bf16 = true};
  const auto at = [&](std::string_view level) { return describe(limited_to(all, level)); };
  EXPECT_EQ(at("SSE41"), "baseline x86-64");
  EXPECT_EQ(at("AVX"), "baseline x86-64");
  for (const auto* level : {"AVX2", "avx2", "AVX2_VNNI", "AVX2_VNNI_2"})
    EXPECT_EQ(at(level), "AVX2") << level;
  for (const auto* level : {"AVX512_CORE", "AVX512_CORE_VNNI", "avx512_core_vnni"})
    EXPECT_EQ(at(level), "AVX-512") << level;
  EXPECT_EQ(at("AVX512_CORE_BF16"), "AVX-512, AVX512_BF16");
  for (const auto* level : {"AVX512_CORE_FP16", "AVX10_1_512"})
    EXPECT_EQ(at(level), "AVX-512, AVX512_BF16, AVX512_FP16") << level;
  for (const auto* level : {"AVX512_CORE_AMX", "AVX10_1_512_AMX", "ALL", "DEFAULT", "", "avx51"})
    EXPECT_EQ(at(level), describe(all)) << level;
  EXPECT_EQ(describe(limited_to({.avx2 = true}, "AVX512_CORE_BF16")), "AVX2");
}

TEST(InstructionSet, OfOneDNNFollowsTheEnvironment) {
  const char* level = std::getenv("ONEDNN_MAX_CPU_ISA");
  if (!level || !*level) level = std::getenv("DNNL_MAX_CPU_ISA");
  EXPECT_EQ(describe(onednn_instruction_set()),
            describe(limited_to(instruction_set(), level ? level : "")));
  EXPECT_EQ(has_bf16_hardware(),
            onednn_instruction_set().avx512_bf16 || onednn_instruction_set().amx_bf16);
}

TEST(InstructionSet, Description) {
  EXPECT_EQ(describe(InstructionSet{}), "baseline x86-64");
  EXPECT_EQ(describe(InstructionSet{.avx2 = true}), "AVX2");
  EXPECT_EQ(describe(InstructionSet{.avx2 = true, .avx512 = true, .avx512_bf16 = true}),
            "AVX-512, AVX512_BF16");
  EXPECT_FALSE(processor_name().empty());
}

}  // namespace
}  // namespace demi
