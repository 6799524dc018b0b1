#include "lab/profiler/kernel_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdio>
#include <string>

#include "lab/profiler/captured_output.h"

namespace demi::profiler {
namespace {

using testing::Contains;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

std::string log_of(std::initializer_list<std::string> lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

// Lines as oneDNN's own page shows them (uxlfoundation.github.io/oneDNN/dev_guide_verbose.html).
TEST(KernelLog, ReadsLinesOfOneDnn) {
  const std::string reorder =
      "onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,src:f32::blocked:abcd::f0 "
      "dst:f32::blocked:Adcb8a::f0,,,32x1x3x3,0.1";
  const std::string convolution =
      "onednn_verbose,v1,primitive,exec,cpu,convolution,jit:avx2,forward_inference,src:f32:a:"
      "blocked:abcd::f0 wei:f32:a:blocked:Acdb8a::f0,,alg:convolution_direct,mb2_ic2,0.3";
  const auto kernels =
      kernels_of(log_of({begin_mark("aten::convolution"), begin_mark("aten::mkldnn_convolution"),
                         "onednn_verbose,v1,info,oneDNN v3.13.3", reorder, convolution,
                         std::string(kEndMark), std::string(kEndMark)}));
  ASSERT_THAT(kernels, SizeIs(2));
  EXPECT_THAT(kernels, Contains(Field(&CpuKernel::name, "convolution jit:avx2")));
  for (const CpuKernel& kernel : kernels) {
    EXPECT_EQ(kernel.op, "aten::mkldnn_convolution") << "the innermost open op";
    EXPECT_EQ(kernel.dtype, "f32");
  }
}

// oneDNN 2 spells descriptors in another way, and its lines may begin with dnnl_verbose.
TEST(KernelLog, ReadsLinesOfOneDnn2) {
  const auto kernels = kernels_of(
      log_of({begin_mark("aten::mm"),
              "dnnl_verbose,exec,cpu,matmul,brgemm:avx512_core_bf16,undef,src_bf16::blocked:"
              "ab:f0 wei_bf16::blocked:ab:f0,,,2x4:4x2,0.5",
              "dnnl_verbose,exec,cpu,matmul,brgemm:avx512_core_bf16,undef,src_bf16::blocked:"
              "ab:f0 wei_bf16::blocked:ab:f0,,,2x4:4x2,0.5"}));
  ASSERT_THAT(kernels, SizeIs(1));
  EXPECT_EQ(kernels[0].name, "matmul brgemm:avx512_core_bf16");
  EXPECT_EQ(kernels[0].dtype, "bf16");
  EXPECT_EQ(kernels[0].calls, 2);
}

// Intel's "Using Verbose Mode" in the developer guide of MKL.
TEST(KernelLog, ReadsLinesOfMkl) {
  const auto kernels = kernels_of(log_of(
      {begin_mark("aten::addmm"), "MKL_VERBOSE Intel(R) MKL 2019.0 Product build for AVX2 (x86)",
       "MKL_VERBOSE SGEMM(N,N,30,10,20,0x7,0x7,30,0x7,20,0x7,0x7,30) 2.09ms CNR:OFF Dyn:1 TID:0",
       std::string(kEndMark)}));
  ASSERT_THAT(kernels, SizeIs(1));
  EXPECT_EQ(kernels[0].name, "MKL SGEMM");
  EXPECT_EQ(kernels[0].dtype, "f32");
}

TEST(KernelLog, OtherLinesAndDamagedOnesNameNoKernel) {
  EXPECT_THAT(kernels_of(""), IsEmpty());
  EXPECT_THAT(
      kernels_of(log_of({"onednn_verbose,v1,primitive,exec,cpu,matmul,ref,undef,src:f32,x"})),
      IsEmpty())
      << "outside of every op";
  EXPECT_THAT(kernels_of(log_of(
                  {begin_mark("aten::mm"), "onednn_verbose,v1,primitive,exec,cpu,matmul,ref,undef",
                   "onednn_verbose,v1,primitive,exec,cpu", "onednn_verbose", "MKL_VERBOSE ",
                   "MKL_VERBOSE SGEMM", "hello", std::string(kEndMark), std::string(kEndMark)})),
              IsEmpty());
}

// A bf16 convolution is oneDNN's on every processor; what the test prints itself stays out.
TEST(KernelLog, NamesTheKernelOfAConvolution) {
  torch::NoGradGuard no_grad;
  const auto input = torch::rand({2, 8, 16, 16}), weight = torch::rand({8, 8, 3, 3});
  torch::conv2d(input, weight);  // makes the primitive
  KernelLog log;
  if (!log.is_open()) GTEST_SKIP() << "this LibTorch has no log of oneDNN";
  torch::conv2d(input, weight);
  const auto kernels = log.finish();
  ASSERT_THAT(kernels, Contains(Field(&CpuKernel::name, HasSubstr("convolution"))));
  for (const CpuKernel& kernel : kernels) {
    EXPECT_THAT(kernel.op, HasSubstr("convolution"));
    EXPECT_EQ(kernel.dtype, "f32");
  }
}

TEST(CapturedOutput, HoldsWhatWasWrittenAndGivesTheOutputBack) {
  testing::internal::CaptureStdout();
  std::string caught;
  {
    CapturedOutput output;
    ASSERT_TRUE(output.is_open());
    std::printf("within\n");
    caught = output.text();
    std::printf("after\n");
  }
  std::fflush(stdout);
  EXPECT_EQ(caught, "within\n");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "after\n");
}

}  // namespace
}  // namespace demi::profiler
