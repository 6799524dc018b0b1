#include "lab/profiler/summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "demi/core/error.h"

namespace demi::profiler {
namespace {

using testing::IsEmpty;
using testing::SizeIs;
using Kind = Event::Kind;

constexpr std::int64_t kUs = 1000;  // nanoseconds

Event event(Kind kind, std::string name, std::int64_t from_us, std::int64_t to_us) {
  return {.kind = kind,
          .name = std::move(name),
          .thread = 1,
          .start_ns = from_us * kUs,
          .end_ns = to_us * kUs};
}

Event op(std::string name, std::int64_t from_us, std::int64_t to_us,
         std::vector<std::string> dtypes, std::vector<std::vector<std::int64_t>> shapes = {}) {
  Event one = event(Kind::op, std::move(name), from_us, to_us);
  one.dtypes = std::move(dtypes);
  one.shapes = std::move(shapes);
  return one;
}

Event phase(const std::string& name, std::int64_t from_us, std::int64_t to_us) {
  return event(Kind::range, "demi::" + name, from_us, to_us);
}

const OpUse* find(const Summary& summary, const std::string& name, const std::string& dtype) {
  const auto found = std::ranges::find_if(
      summary.ops, [&](const OpUse& use) { return use.name == name && use.dtype == dtype; });
  return found == summary.ops.end() ? nullptr : &*found;
}

double phase_ms(const Summary& summary, const std::string& name) {
  for (const auto& [phase, ms] : summary.phase_ms)
    if (phase == name) return ms;
  return -1;
}

// A loop of one's own has no phases, and 0 ops in 0 ms would be wrong.
TEST(Summary, RefusesEventsThatLieInNoPhase) {
  EXPECT_THROW(summarise({op("aten::mm", 0, 800, {"float", "float"})}, 1), UsageError);
  EXPECT_NO_THROW(summarise({}, 1));
}

TEST(Summary, TimesArePerStepAndOfTheOpItself) {
  const Summary s = summarise({phase("forward", 0, 1000), op("aten::linear", 0, 800, {"float"}),
                               op("aten::mm", 100, 700, {"float", "float"}),
                               phase("backward", 1000, 3000), phase("forward", 3000, 4000)},
                              2);
  EXPECT_DOUBLE_EQ(s.step_ms, 2);
  EXPECT_DOUBLE_EQ(phase_ms(s, "forward"), 1);
  EXPECT_DOUBLE_EQ(phase_ms(s, "backward"), 1);
  EXPECT_DOUBLE_EQ(phase_ms(s, "unscale"), 0);
  ASSERT_NE(find(s, "aten::linear", "fp32"), nullptr);
  EXPECT_DOUBLE_EQ(find(s, "aten::linear", "fp32")->ms, 0.1) << "800 us less the product's 600";
  EXPECT_DOUBLE_EQ(find(s, "aten::mm", "fp32")->ms, 0.3);
  EXPECT_DOUBLE_EQ(find(s, "aten::mm", "fp32")->calls, 0.5);
  EXPECT_DOUBLE_EQ(s.ops_ms, 0.4);
}

TEST(Summary, WhatLiesOutsideThePhasesDoesNotCount) {
  const Summary s = summarise(
      {op("aten::mm", 0, 50, {"float"}), phase("forward", 100, 200), op("aten::mm", 300, 400, {})},
      1);
  EXPECT_THAT(s.ops, IsEmpty());
}

// linear has the same product within itself: it is counted once.
TEST(Summary, FlopsAreCountedOnceAndByDtype) {
  const Summary s = summarise(
      {phase("forward", 0, 1000),
       op("aten::linear", 0, 400, {"float", "float"}, {{100, 200}, {300, 200}}),
       op("aten::mm", 10, 390, {"c10::BFloat16", "c10::BFloat16"}, {{100, 200}, {200, 300}}),
       op("aten::mm", 500, 900, {"float", "float"}, {{100, 200}, {200, 100}})},
      1);
  EXPECT_NEAR(s.gflop, 2e-9 * (100. * 200 * 300 + 100. * 200 * 100), 1e-15);
  EXPECT_DOUBLE_EQ(s.low_flops_share, 0.75);
}

// copy_(to, from) with two floating point dtypes is a cast if one of them has
// 16 bits; of one dtype, or from integers, none.
TEST(Summary, CountsCasts) {
  const Summary s = summarise(
      {phase("forward", 0, 1000), op("aten::copy_", 0, 100, {"c10::BFloat16", "float", "Scalar"}),
       op("aten::copy_", 100, 200, {"float", "c10::Half", "Scalar"}),
       op("aten::copy_", 200, 300, {"float", "float", "Scalar"}),
       op("aten::copy_", 300, 400, {"float", "long int", "Scalar"}),
       op("aten::copy_", 400, 500, {"float", "double", "Scalar"}, {{}, {}})},
      2);
  EXPECT_DOUBLE_EQ(s.casts, 1);
  EXPECT_DOUBLE_EQ(s.cast_ms, 0.1);
  ASSERT_NE(find(s, "aten::copy_", "fp32 to bf16"), nullptr);
  EXPECT_TRUE(find(s, "aten::copy_", "fp32 to bf16")->is_cast);
  EXPECT_NE(find(s, "aten::copy_", "fp16 to fp32"), nullptr);
  EXPECT_DOUBLE_EQ(s.low_time_share, 0) << "a cast is none of the ops of 16 bits";
}

// In a region an op casts its own arguments, or finds a kept copy of a weight.
TEST(Summary, AnOpsDtypeIsThatInWhichItComputes) {
  const Summary s =
      summarise({phase("forward", 0, 1000), op("aten::addmm", 0, 400, {"float", "float", "float"}),
                 op("aten::to", 10, 60, {"float"}), op("aten::_to_copy", 15, 55, {"float"}),
                 op("aten::copy_", 20, 50, {"c10::BFloat16", "float", "Scalar"}),
                 op("aten::softmax", 400, 500, {"c10::BFloat16"}),
                 op("aten::to", 410, 440, {"c10::BFloat16"}),
                 op("aten::copy_", 415, 435, {"float", "c10::BFloat16", "Scalar"}),
                 op("aten::mm", 500, 600, {"float", "float"}),
                 op("aten::resolve_conj", 510, 520, {"c10::Half"}),
                 op("aten::batch_norm", 600, 700, {"c10::Half", "float"})},
                1);
  EXPECT_NE(find(s, "aten::addmm", "bf16"), nullptr);
  EXPECT_NE(find(s, "aten::softmax", "fp32"), nullptr);
  EXPECT_NE(find(s, "aten::mm", "fp16"), nullptr);
  EXPECT_NE(find(s, "aten::batch_norm", "fp16"), nullptr);
}

// LibTorch's type promotion: a sum with an FP32 tensor is FP32, with an FP32 number of no dimension
// it is not.
TEST(Summary, ASumOfTwoDtypesIsInTheWiderOne) {
  const Summary s = summarise(
      {phase("forward", 0, 1000),
       op("aten::add", 0, 300, {"float", "c10::BFloat16", "Scalar"}, {{8, 8}, {8, 8}, {}}),
       op("aten::mul", 300, 400, {"c10::BFloat16", "float"}, {{8, 8}, {}})},
      1);
  ASSERT_NE(find(s, "aten::add", "fp32"), nullptr);
  ASSERT_NE(find(s, "aten::mul", "bf16"), nullptr);
  EXPECT_FALSE(find(s, "aten::add", "fp32")->is_low);
  EXPECT_DOUBLE_EQ(s.low_time_share, 0.25);
}

// Its blocks leave out what a causal mask hides, and its figure does not.
TEST(Summary, AKernelOfDemisCountsForWhatItCalls) {
  const Event attention =
      op("demi.attention", 0, 900, {"c10::BFloat16", "c10::BFloat16", "c10::BFloat16"},
         {{1, 2, 16, 8}, {1, 2, 16, 8}, {1, 2, 16, 8}});
  const Summary s =
      summarise({phase("forward", 0, 1000), attention,
                 op("aten::bmm", 100, 200, {"float", "float"}, {{2, 8, 8}, {2, 8, 16}})},
                1);
  EXPECT_NEAR(s.gflop, 1e-9 * 2 * 2 * 16 * 16 * (8 + 8), 1e-15);
  EXPECT_DOUBLE_EQ(s.low_flops_share, 1);
}

TEST(Summary, IdleIsWhatNoOpCoversAndTheOptimizersStepIsWork) {
  const Summary s = summarise(
      {phase("data", 0, 400), op("aten::mm", 100, 200, {"float"}), phase("forward", 400, 800),
       op("aten::relu", 400, 700, {"float"}), phase("unscale", 800, 900), phase("step", 900, 1000)},
      1);
  EXPECT_NEAR(s.idle_share, 0.4, 1e-12) << "300 us of data and 100 of forward";
}

TEST(Summary, ShortOpsByNumberAndByTime) {
  const Summary s =
      summarise({phase("forward", 0, 1000), op("aten::relu", 0, 5, {"float"}),
                 op("aten::add", 10, 15, {"float"}), op("aten::mul", 20, 25, {"float"}),
                 op("aten::view", 30, 31, {"float"}), op("aten::linear", 100, 200, {"float"}),
                 op("aten::mm", 105, 190, {"float"})},
                1);
  EXPECT_DOUBLE_EQ(s.kernels, 4) << "linear calls another one, a view computes nothing";
  EXPECT_DOUBLE_EQ(s.short_share, 0.75);
  EXPECT_DOUBLE_EQ(s.short_time_share, 15.0 / 100);
}

TEST(Summary, NamesThePlaceOfAWait) {
  const Summary s =
      summarise({phase("forward", 0, 500), op("aten::relu", 0, 100, {"float"}),
                 op("aten::view", 100, 110, {"float"}), op("aten::item", 110, 300, {"float"}),
                 op("aten::_local_scalar_dense", 120, 290, {"float"}),
                 event(Kind::runtime, "cudaStreamSynchronize", 130, 280),
                 op("aten::nonzero", 300, 400, {"float"}),
                 event(Kind::runtime, "cudaStreamSynchronize", 310, 390), phase("loss", 500, 600)},
                1);
  ASSERT_THAT(s.syncs, SizeIs(2)) << "the wait within item() is item()'s";
  std::vector<std::string> places{s.syncs[0].place, s.syncs[1].place};
  EXPECT_THAT(places, testing::UnorderedElementsAre("forward: aten::item after aten::relu",
                                                    "forward: aten::nonzero after aten::item"));
  EXPECT_DOUBLE_EQ(s.syncs_of_a_step(), 2);
}

Event kernel(std::string name, std::int64_t from_us, std::int64_t to_us, std::uint64_t op_id) {
  Event one = event(Kind::kernel, std::move(name), from_us, to_us);
  one.thread = 0;
  one.op_id = op_id;
  return one;
}

TEST(Summary, OfADeviceTimesAreThoseOfItsKernels) {
  Event product = op("aten::mm", 10, 20, {"c10::Half", "c10::Half"});
  product.id = 7;
  Event copy = kernel("Memcpy HtoD (Pinned -> Device)", 600, 700, 0);
  copy.kind = Kind::copy;
  const Summary s =
      summarise({phase("forward", 0, 1000), product,
                 kernel("ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_tn", 100, 500, 7),
                 kernel("vectorized_elementwise_kernel", 550, 555, 99), copy},
                1);
  EXPECT_TRUE(s.is_device);
  const OpUse* use = find(s, "aten::mm", "fp16");
  ASSERT_NE(use, nullptr);
  EXPECT_DOUBLE_EQ(use->ms, 0.4);
  EXPECT_TRUE(use->tensor_cores);
  EXPECT_THAT(use->kernels, SizeIs(1));
  EXPECT_NEAR(s.idle_share, 1 - 0.505, 1e-12);
  EXPECT_DOUBLE_EQ(s.kernels, 2) << "a copy is none";
  EXPECT_DOUBLE_EQ(s.short_share, 0.5);
  EXPECT_NEAR(s.tensor_core_share, 400.0 / 405, 1e-12);
}

// Two steps, of which a graph replays the second one's kernels. The host runs ahead: the last
// kernel ends after the last phase.
TEST(Summary, CountsLaunchesAndTheTimeInWhichTheDeviceHasWork) {
  Event copy = kernel("Memcpy HtoD (Pinned -> Device)", 40, 60, 0);
  copy.kind = Kind::copy;
  const Summary s =
      summarise({phase("forward", 0, 100), event(Kind::runtime, "cudaMemcpyAsync", 10, 12),
                 event(Kind::runtime, "cudaLaunchKernel", 20, 25),
                 event(Kind::runtime, "cuLaunchKernelEx", 30, 35),
                 event(Kind::runtime, "cudaGraphLaunch", 50, 60),
                 event(Kind::runtime, "cudaEventRecordWithFlags", 60, 61), phase("other", 100, 200),
                 event(Kind::runtime, "cudaStreamSynchronize", 110, 190),
                 event(Kind::runtime, "cudaLaunchKernel", 300, 301), copy, kernel("a", 50, 100, 0),
                 kernel("b", 90, 110, 0), kernel("c", 150, 250, 0)},
                2);
  EXPECT_DOUBLE_EQ(s.launches, 2) << "four calls, and one that is of no step";
  EXPECT_DOUBLE_EQ(s.kernels, 1.5);
  EXPECT_DOUBLE_EQ(s.busy_ms, (0.070 + 0.100) / 2) << "40 to 110 and 150 to 250 us";
  EXPECT_DOUBLE_EQ(s.idle_share, 1 - (70. + 50) / 200);
}

TEST(Summary, OfNothing) {
  const Summary s = summarise({}, 0);
  EXPECT_THAT(s.ops, IsEmpty());
  EXPECT_EQ(s.step_ms, 0);
  EXPECT_EQ(s.idle_share, 0);
  EXPECT_EQ(s.launches, 0);
  EXPECT_EQ(s.busy_ms, 0);
}

// Names as Nsight's and cuBLAS's logs have them.
TEST(Summary, KernelsOnTensorCores) {
  for (const char* name :
       {"ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn",
        "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_tn", "turing_fp16_s1688gemm_fp16_128x128_nt",
        "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc",
        "void cutlass::Kernel2<cutlass_80_wmma_tensorop_f16_s161616gemm_f16_16x16_32x1_nn_align8>",
        "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16",
        "nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNN"})
    EXPECT_TRUE(uses_tensor_cores(name)) << name;
  for (const char* name :
       {"ampere_sgemm_128x64_tn", "vectorized_elementwise_kernel",
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x256_8x4_nn_align1>",
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_ffma_kernel", ""})
    EXPECT_FALSE(uses_tensor_cores(name)) << name;
}

}  // namespace
}  // namespace demi::profiler
