#include "demi/core/instruction_set.h"

#include <gtest/gtest.h>

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

TEST(InstructionSet, Description) {
  EXPECT_EQ(describe(InstructionSet{}), "baseline x86-64");
  EXPECT_EQ(describe(InstructionSet{.avx2 = true}), "AVX2");
  EXPECT_EQ(describe(InstructionSet{.avx2 = true, .avx512 = true, .avx512_bf16 = true}),
            "AVX-512, AVX512_BF16");
  EXPECT_FALSE(processor_name().empty());
}

}  // namespace
}  // namespace demi
