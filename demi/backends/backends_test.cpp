#include "demi/backends/backends.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "demi/core/error.h"
#include "demi/core/memory_testing.h"

namespace demi {
namespace {

using at::Float32Backend;
using at::Float32Op;
using at::Float32Precision;
using Reduction = at::CuBLASReductionOption;

// The defaults are those of PyTorch's documentation (torch.backends), but for the number of
// threads.
TEST(BackendsCurrent, AreLibTorchsDefaultsAtTheStart) {
  const Backends now = Backends::current();
  EXPECT_EQ(now.cuda_matmul_allow_tf32, false);
  EXPECT_EQ(now.cudnn_allow_tf32, true);
  EXPECT_EQ(now.allow_fp16_reduced_precision_reduction, true);
  EXPECT_EQ(now.allow_bf16_reduced_precision_reduction, true);
  EXPECT_EQ(now.cudnn_enabled, true);
  EXPECT_EQ(now.cudnn_benchmark, false);
  EXPECT_EQ(now.cudnn_deterministic, false);
  EXPECT_EQ(now.deterministic_algorithms, false);
  EXPECT_EQ(now.mkldnn_fp32_precision, "none");
  EXPECT_EQ(now.threads, at::get_num_threads());
}

Backends all_others(const Backends& now) {
  Backends other;
  other.cuda_matmul_allow_tf32 = !*now.cuda_matmul_allow_tf32;
  other.cudnn_allow_tf32 = !*now.cudnn_allow_tf32;
  other.allow_fp16_reduced_precision_reduction = !*now.allow_fp16_reduced_precision_reduction;
  other.allow_bf16_reduced_precision_reduction = !*now.allow_bf16_reduced_precision_reduction;
  other.cudnn_enabled = !*now.cudnn_enabled;
  other.cudnn_benchmark = !*now.cudnn_benchmark;
  other.cudnn_deterministic = !*now.cudnn_deterministic;
  other.deterministic_algorithms = !*now.deterministic_algorithms;
  other.mkldnn_fp32_precision = "ieee";
  other.threads = *now.threads + 1;
  return other;
}

TEST(BackendsGuard, HoldsWhatIsGivenUntilTheEndOfTheScope) {
  const Backends before = Backends::current();
  const Backends other = all_others(before);
  {
    const BackendsGuard guard(other);
    EXPECT_EQ(Backends::current(), other);
    // What LibTorch itself reads.
    const at::Context& context = at::globalContext();
    EXPECT_TRUE(context.allowTF32CuBLAS());
    EXPECT_FALSE(context.allowTF32CuDNN());
    EXPECT_EQ(context.allowFP16ReductionCuBLAS(), Reduction::DisallowReducedPrecisionAllowSplitK);
    EXPECT_FALSE(context.userEnabledCuDNN());
    EXPECT_TRUE(context.benchmarkCuDNN());
    EXPECT_TRUE(context.deterministicCuDNN());
    EXPECT_TRUE(context.deterministicAlgorithms());
    EXPECT_EQ(context.float32Precision(Float32Backend::MKLDNN, Float32Op::CONV),
              Float32Precision::IEEE);
    {
      const BackendsGuard inner(before);
      EXPECT_EQ(Backends::current(), before);
    }
    EXPECT_EQ(Backends::current(), other) << "guards nest";
  }
  EXPECT_EQ(Backends::current(), before);
}

// Each setting alone: it is that one which changes, and no other.
TEST(BackendsGuard, LeavesWhatIsNotGivenAsItIs) {
  const Backends before = Backends::current();
  const Backends other = all_others(before);
  std::vector<Backends> singles(10);
  singles[0].cuda_matmul_allow_tf32 = other.cuda_matmul_allow_tf32;
  singles[1].cudnn_allow_tf32 = other.cudnn_allow_tf32;
  singles[2].allow_fp16_reduced_precision_reduction = other.allow_fp16_reduced_precision_reduction;
  singles[3].allow_bf16_reduced_precision_reduction = other.allow_bf16_reduced_precision_reduction;
  singles[4].cudnn_enabled = other.cudnn_enabled;
  singles[5].cudnn_benchmark = other.cudnn_benchmark;
  singles[6].cudnn_deterministic = other.cudnn_deterministic;
  singles[7].deterministic_algorithms = other.deterministic_algorithms;
  singles[8].mkldnn_fp32_precision = other.mkldnn_fp32_precision;
  singles[9].threads = other.threads;
  const auto differences = [](const Backends& a, const Backends& b) {
    return (a.cuda_matmul_allow_tf32 != b.cuda_matmul_allow_tf32) +
           (a.cudnn_allow_tf32 != b.cudnn_allow_tf32) +
           (a.allow_fp16_reduced_precision_reduction != b.allow_fp16_reduced_precision_reduction) +
           (a.allow_bf16_reduced_precision_reduction != b.allow_bf16_reduced_precision_reduction) +
           (a.cudnn_enabled != b.cudnn_enabled) + (a.cudnn_benchmark != b.cudnn_benchmark) +
           (a.cudnn_deterministic != b.cudnn_deterministic) +
           (a.deterministic_algorithms != b.deterministic_algorithms) +
           (a.mkldnn_fp32_precision != b.mkldnn_fp32_precision) + (a.threads != b.threads);
  };
  for (std::size_t i = 0; i < singles.size(); ++i) {
    {
      const BackendsGuard guard(singles[i]);
      EXPECT_EQ(differences(Backends::current(), before), 1) << i;
      EXPECT_EQ(differences(Backends::current(), other), 9) << i;
    }
    EXPECT_EQ(Backends::current(), before) << i;
  }
}

// Two fits in two threads: the first one that begins is the first one that ends.
TEST(BackendsGuard, TheFirstMadeMayEndFirst) {
  const Backends before = Backends::current();
  const Backends other = all_others(before);
  Backends only_cudnn;
  only_cudnn.cudnn_benchmark = other.cudnn_benchmark;
  auto first = std::make_unique<BackendsGuard>(other);
  auto second = std::make_unique<BackendsGuard>(other);
  auto third = std::make_unique<BackendsGuard>(only_cudnn);
  first.reset();
  EXPECT_EQ(Backends::current(), other) << "the second's";
  second.reset();
  Backends expected = before;
  expected.cudnn_benchmark = other.cudnn_benchmark;
  EXPECT_EQ(Backends::current(), expected) << "the third's";
  third.reset();
  EXPECT_EQ(Backends::current(), before);

  // One that sets nothing, or something else, hands nothing on.
  auto bystander = std::make_unique<BackendsGuard>(Backends());
  auto outer = std::make_unique<BackendsGuard>(other);
  auto inner = std::make_unique<BackendsGuard>(before);
  bystander.reset();
  inner.reset();
  EXPECT_EQ(Backends::current(), other);
  outer.reset();
  EXPECT_EQ(Backends::current(), before);
}

TEST(BackendsGuard, PutsBackWhatBackendsDoNotTell) {
  at::Context& context = at::globalContext();
  context.setAllowFP16ReductionCuBLAS(false, /*allow_splitk=*/false);
  context.setAllowBF16ReductionCuBLAS(false, /*allow_splitk=*/true);
  context.setDeterministicAlgorithms(true, /*warn_only=*/true);
  {
    const BackendsGuard guard({.allow_fp16_reduced_precision_reduction = true,
                               .allow_bf16_reduced_precision_reduction = true,
                               .deterministic_algorithms = true});
    EXPECT_FALSE(context.deterministicAlgorithmsWarnOnly()) << "an error, not a warning";
    EXPECT_EQ(context.allowFP16ReductionCuBLAS(), Reduction::AllowReducedPrecisionWithSplitK);
  }
  EXPECT_EQ(context.allowFP16ReductionCuBLAS(), Reduction::DisallowReducedPrecisionDisallowSplitK);
  EXPECT_EQ(context.allowBF16ReductionCuBLAS(), Reduction::DisallowReducedPrecisionAllowSplitK);
  EXPECT_TRUE(context.deterministicAlgorithmsWarnOnly());
  context.setAllowFP16ReductionCuBLAS(true);
  context.setAllowBF16ReductionCuBLAS(true);
  context.setDeterministicAlgorithms(false, false);
}

TEST(BackendsGuard, WhatFollowedASettingAboveItFollowsAgain) {
  at::Context& context = at::globalContext();
  context.setFloat32Precision(Float32Backend::GENERIC, Float32Op::ALL, Float32Precision::IEEE);
  { const BackendsGuard guard({.cuda_matmul_allow_tf32 = true}); }
  context.setFloat32Precision(Float32Backend::GENERIC, Float32Op::ALL, Float32Precision::TF32);
  for (const Float32Op op : {Float32Op::MATMUL, Float32Op::CONV, Float32Op::RNN})
    EXPECT_EQ(context.float32Precision(Float32Backend::MKLDNN, op), Float32Precision::TF32);
  context.setFloat32Precision(Float32Backend::GENERIC, Float32Op::ALL, Float32Precision::NONE);
}

TEST(BackendsSet, RefusesBeforeAnythingIsChanged) {
  const Backends before = Backends::current();
  EXPECT_THROW((Backends{.cudnn_benchmark = true, .threads = 0}.set()), UsageError);
  try {
    Backends{.cudnn_benchmark = true, .mkldnn_fp32_precision = "tf23"}.set();
    ADD_FAILURE() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("tf32"));
  }
  EXPECT_THROW(const BackendsGuard guard({.cudnn_benchmark = true, .threads = -1}), UsageError);
  EXPECT_EQ(Backends::current(), before);
}

constexpr std::int64_t kBytes = std::int64_t{34} << 20;  // of a large tensor

// The kernel clears a page at its first use; a page that stayed with the process has been used. Of
// four tensors: the first four that take no pages, if there are such. How many come before, until
// glibc has a hole that the next one fits, is a matter of the small pieces between.
std::int64_t page_faults_of_large_tensors(std::int64_t pages) {
  const auto faults = [] {
    rusage use{};
    getrusage(RUSAGE_SELF, &use);
    return static_cast<std::int64_t>(use.ru_minflt);
  };
  std::int64_t taken = 4 * pages;
  for (int tries = 0; tries < 10 && taken >= pages / 100; ++tries) {
    const std::int64_t before = faults();
    for (int i = 0; i < 4; ++i) at::empty({kBytes}, at::kByte).fill_(1);
    taken = faults() - before;
  }
  return taken;
}

TEST(KeepMemory, LargeTensorsReuseTheProcessesPages) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "malloc is not glibc's, but ThreadSanitizer's";
#endif
  const WithoutHugePages small_pages;
  const std::int64_t pages = kBytes / ::sysconf(_SC_PAGESIZE);
  const std::int64_t given_back = page_faults_of_large_tensors(pages);
  if (!keep_memory()) GTEST_SKIP() << "malloc is not glibc's";
  const std::int64_t kept = page_faults_of_large_tensors(pages);
  EXPECT_GE(given_back, 4 * pages) << "each page, 4 times";
  EXPECT_LT(kept, pages / 100) << "but for what other threads and the system touch";
}

TEST(BackendsSet, Stays) {
  Backends{.cudnn_benchmark = true}.set();
  EXPECT_TRUE(at::globalContext().benchmarkCuDNN());
  Backends{.cudnn_benchmark = false}.set();
  EXPECT_FALSE(at::globalContext().benchmarkCuDNN());
}

}  // namespace
}  // namespace demi
