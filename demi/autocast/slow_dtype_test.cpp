#include "demi/autocast/slow_dtype.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "demi/autocast/autocast.h"
#include "demi/core/bf16_products.h"
#include "demi/core/cuda_library.h"
#include "demi/core/instruction_set.h"
#include "demi/weights/recorded_warnings_testing.h"

namespace demi {
namespace {

using c10::ScalarType;
using testing::HasSubstr;
using weights::testing::RecordedWarnings;

TEST(SlowDtype, Bf16OnCudaNeedsAmpere) {
  for (const int capability : {52, 70, 75})
    EXPECT_THAT(why_slow_on_cuda(capability, ScalarType::BFloat16), HasSubstr("8.0")) << capability;
  for (const int capability : {80, 86, 90, 100, 120})
    EXPECT_EQ(why_slow_on_cuda(capability, ScalarType::BFloat16), "") << capability;
}

TEST(SlowDtype, Fp16OnCuda) {
  EXPECT_THAT(why_slow_on_cuda(52, ScalarType::Half), HasSubstr("5.3"));
  EXPECT_THAT(why_slow_on_cuda(61, ScalarType::Half), HasSubstr("1/64"));
  for (const int capability : {53, 60, 62})  // twice FP32's rate at most, and no tensor cores
    EXPECT_THAT(why_slow_on_cuda(capability, ScalarType::Half), HasSubstr("7.0")) << capability;
  for (const int capability : {70, 75, 80, 90})
    EXPECT_EQ(why_slow_on_cuda(capability, ScalarType::Half), "") << capability;
}

TEST(SlowDtype, OfSeveralCudaDevicesTheSlowOnesAreNamed) {
  EXPECT_EQ(why_slow_on_cuda(std::vector<int>{90, 80}, ScalarType::BFloat16), "");
  EXPECT_EQ(why_slow_on_cuda(std::vector<int>{}, ScalarType::BFloat16), "");
  EXPECT_THAT(why_slow_on_cuda(std::vector<int>{90, 75, 70}, ScalarType::BFloat16),
              HasSubstr("(cuda device 1, 2)"));
  EXPECT_EQ(why_slow_on_cuda(std::vector<int>{75}, ScalarType::BFloat16),
            why_slow_on_cuda(75, ScalarType::BFloat16));
}

TEST(SlowDtype, AnAnswerIsUsedUpOnceItIsKnown) {
  std::atomic<bool> known = false;
  int asked = 0;
  const auto nobody_knows = [&]() -> std::optional<std::string> { return ++asked, std::nullopt; };
  const auto slow = [&]() -> std::optional<std::string> { return ++asked, "slow"; };
  EXPECT_EQ(once_known(known, nobody_knows), "") << "the driver is not loaded";
  EXPECT_EQ(once_known(known, nobody_knows), "");
  EXPECT_EQ(once_known(known, slow), "slow");
  EXPECT_EQ(once_known(known, slow), "");
  EXPECT_EQ(asked, 3);
  std::atomic<bool> other = false;
  EXPECT_EQ(once_known(other, [] { return std::optional<std::string>(""); }), "") << "not slow";
  EXPECT_EQ(once_known(other, slow), "");
}

TEST(SlowDtype, Fp32IsNeverSlowAndOtherDevicesSayNothing) {
  EXPECT_EQ(why_slow_on_cuda(50, ScalarType::Float), "");
  EXPECT_EQ(why_slow(c10::DeviceType::CPU, ScalarType::Float), "");
  EXPECT_EQ(why_slow(c10::DeviceType::XPU, ScalarType::Half), "");
}

// /proc/cpuinfo is asked here, the library asks CPUID.
bool processor_has(const std::string& flag) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("flags")) return (line + " ").find(" " + flag + " ") != std::string::npos;
  return false;
}

TEST(SlowDtype, OnCpuByTheInstructionsThatOneDNNMayUse) {
  const InstructionSet here{.avx512_bf16 = processor_has("avx512_bf16"),
                            .avx512_fp16 = processor_has("avx512_fp16"),
                            .amx_bf16 = processor_has("amx_bf16")};
  const char* level = std::getenv("ONEDNN_MAX_CPU_ISA");
  const InstructionSet used = limited_to(here, level ? level : "");
  const std::string bf16 = why_slow(c10::DeviceType::CPU, ScalarType::BFloat16),
                    fp16 = why_slow(c10::DeviceType::CPU, ScalarType::Half);
  EXPECT_EQ(bf16.empty(), bf16_products() == Bf16Products::bf16);
  EXPECT_EQ(fp16.find("oneDNN has no fast fp16 kernel") != std::string::npos, used.avx512_fp16);
  EXPECT_FALSE(fp16.empty());
  EXPECT_THAT(fp16, HasSubstr("activations take half"));
  if (!bf16.empty()) {
    EXPECT_THAT(bf16, HasSubstr("activations take half"));
    EXPECT_THAT(bf16, HasSubstr(bf16_choice().because));
  }
  const char* forced = std::getenv("DEMI_BF16_PRODUCTS");
  if (!(used.avx512_bf16 || used.amx_bf16) && !(forced && *forced)) {
    EXPECT_EQ(bf16.find("ONEDNN_MAX_CPU_ISA") != std::string::npos,
              here.avx512_bf16 || here.amx_bf16);
  }
}

// Warnings are given once a process, so each of these runs in one of its own.
class FirstRegions : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  static int as_expected(bool is) { return is ? 0 : 1; }
};

TEST_F(FirstRegions, WarnOnceForEachDtypeThatIsSlowHere) {
  const auto counts_are_right = [] {
    const RecordedWarnings warnings;
    for (int i = 0; i < 2; ++i)
      for (const auto dtype : {ScalarType::Half, ScalarType::BFloat16}) {
        const Autocast on_cuda(c10::DeviceType::CUDA, dtype);
        const Autocast region(c10::DeviceType::CPU, dtype);
      }
    const auto wanted = [](ScalarType dtype) {
      return why_slow(c10::DeviceType::CPU, dtype).empty() ? 0 : 1;
    };
    return warnings.holding("fp16 matrix products") == wanted(ScalarType::Half) &&
           warnings.holding("bf16 matrix products") == wanted(ScalarType::BFloat16) &&
           warnings.holding("verrid") == 0;
  };
  EXPECT_EXIT(std::exit(as_expected(counts_are_right())), testing::ExitedWithCode(0), "");
}

TEST_F(FirstRegions, WarnOnceWhereThereIsNoSuchDevice) {
  if (load_cuda().loaded) GTEST_SKIP() << "there may be one";
  const auto counts_are_right = [] {
    const RecordedWarnings warnings;
    { const Autocast off(c10::DeviceType::CUDA, AutocastOptions{.enabled = false}); }
    const bool was_quiet = warnings.messages().empty();
    for (int i = 0; i < 2; ++i) const Autocast region(c10::DeviceType::CUDA);
    const Autocast chosen;  // by the machine
    return was_quiet && warnings.holding("a region for cuda without any cuda device") == 1;
  };
  EXPECT_EXIT(std::exit(as_expected(counts_are_right())), testing::ExitedWithCode(0), "");
}

TEST_F(FirstRegions, SayNothingWhereTheyAreDisabled) {
  const auto is_quiet = [] {
    const RecordedWarnings warnings;
    const Autocast off(c10::DeviceType::CPU,
                       AutocastOptions{.dtype = ScalarType::Half, .enabled = false});
    return warnings.messages().empty();
  };
  EXPECT_EXIT(std::exit(as_expected(is_quiet())), testing::ExitedWithCode(0), "");
}

TEST_F(FirstRegions, TurnStackTracesOnWhereDebuggingIsAskedFor) {
  const auto traces = [](const char* debug) {
    unsetenv("TORCH_SHOW_CPP_STACKTRACES");
    setenv("DEMI_DEBUG", debug, 1);
    const Autocast region(c10::DeviceType::CPU);
    return std::getenv("TORCH_SHOW_CPP_STACKTRACES") != nullptr;
  };
  EXPECT_EXIT(std::exit(as_expected(traces("1"))), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(std::exit(as_expected(!traces("0"))), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace demi
