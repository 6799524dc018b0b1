// Recomputing on a real GPU, with algorithms that give the same bits each time; skipped where there
// is none. The truth is the same program without recompute.
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/torch.h>

#include <cstdlib>
#include <vector>

#include "demi/autocast/autocast.h"
#include "demi/backends/backends.h"
#include "demi/core/cuda_library.h"
#include "demi/nn/transformer_block.h"
#include "demi/recompute/recompute.h"

namespace demi {
namespace {

struct Case {
  double dropout;  // of the attention's weights and of what is added
  bool in_region;  // bf16; else FP32, which takes another of LibTorch's kernels for attention
  bool with_mask;  // another one again
};

class GpuRecompute : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const CudaLibrary& library = load_cuda();
    if (!library.loaded) GTEST_SKIP() << library.reason;
    if (!torch::cuda::is_available()) GTEST_SKIP() << "LibTorch finds no CUDA device";
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);  // what LibTorch asks for
  }
};

TEST_P(GpuRecompute, HasTheBitsOfThePlainRun) {
  const Case& of = GetParam();
  const BackendsGuard exact({.deterministic_algorithms = true});
  torch::manual_seed(1);
  nn::TransformerBlock block(nn::TransformerBlockOptions{
      .width = 128, .heads = 4, .attention_dropout = of.dropout, .residual_dropout = of.dropout});
  block->to(torch::kCUDA);
  const at::Tensor x = torch::randn({4, 96, 128}).cuda().requires_grad_();
  const nn::TokenContext context =
      of.with_mask ? nn::TokenContext{.mask = (torch::rand({96, 96}) > 0.2).cuda()}
                   : nn::TokenContext{.causal = true};
  const auto gradients = [&](bool recomputed, Keep keep) {
    torch::manual_seed(3);
    block->zero_grad();
    x.mutable_grad() = at::Tensor();
    at::Tensor loss;
    {
      const Autocast region(torch::kCUDA, {.dtype = torch::kBFloat16, .enabled = of.in_region});
      const auto forward = [&](const at::Tensor& t) { return block->forward(t, context); };
      const at::Tensor y = recomputed ? recompute(forward, x, {.keep = keep}) : forward(x);
      loss = y.square().mean();
    }
    loss.backward();
    std::vector<at::Tensor> all{loss.detach(), x.grad().clone(), torch::rand({8}, torch::kCUDA)};
    for (const at::Tensor& parameter : block->parameters()) all.push_back(parameter.grad().clone());
    return all;
  };
  const auto want = gradients(false, {}), again = gradients(false, {});
  for (const Keep keep : {Keep::nothing, Keep::products}) {
    const auto got = gradients(true, keep);
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
      EXPECT_TRUE(torch::equal(again[i], want[i])) << i << ": two plain runs differ";
      EXPECT_TRUE(torch::equal(got[i], want[i])) << i << ": " << (got[i] - want[i]).abs().max();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dropout, GpuRecompute,
                         ::testing::Values(Case{0, true, false}, Case{0.2, true, false},
                                           Case{0.2, true, true}, Case{0, false, false},
                                           Case{0.2, false, false}, Case{0.2, false, true}));

}  // namespace
}  // namespace demi
