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

class GpuRecompute : public ::testing::TestWithParam<double> {
 protected:
  void SetUp() override {
    const CudaLibrary& library = load_cuda();
    if (!library.loaded) GTEST_SKIP() << library.reason;
    if (!torch::cuda::is_available()) GTEST_SKIP() << "LibTorch finds no CUDA device";
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);  // what LibTorch asks for
  }
};

// Its parameter is the share that dropout drops: of the attention's weights and of what is added.
TEST_P(GpuRecompute, HasTheBitsOfThePlainRun) {
  const BackendsGuard exact({.deterministic_algorithms = true});
  torch::manual_seed(1);
  nn::TransformerBlock block(nn::TransformerBlockOptions{
      .width = 128, .heads = 4, .attention_dropout = GetParam(), .residual_dropout = GetParam()});
  block->to(torch::kCUDA);
  const at::Tensor x = torch::randn({4, 96, 128}).cuda().requires_grad_();
  const auto gradients = [&](bool recomputed, Keep keep) {
    torch::manual_seed(3);
    block->zero_grad();
    x.mutable_grad() = at::Tensor();
    at::Tensor loss;
    {
      const Autocast region(torch::kCUDA, {.dtype = torch::kBFloat16});
      const auto forward = [&](const at::Tensor& t) { return block->forward(t, {.causal = true}); };
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

INSTANTIATE_TEST_SUITE_P(Dropout, GpuRecompute, ::testing::Values(0.0, 0.2));

}  // namespace
}  // namespace demi
