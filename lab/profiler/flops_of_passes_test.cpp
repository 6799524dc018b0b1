// Operations of whole passes: by the formulas of papers, and as PyTorch's torch.utils.flop_counter
// counts them (benchmarks/peers/flops.py).
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <utility>

#include "demi/attention/attention.h"
#include "demi/autocast/autocast.h"
#include "demi/core/instruction_set.h"
#include "demi/core/source_dir_testing.h"
#include "demi/profile/phase_timer.h"
#include "lab/models/gpt.h"
#include "lab/profiler/flops.h"
#include "lab/profiler/recording.h"
#include "lab/profiler/summary.h"

namespace demi::profiler {
namespace {

using torch::Tensor;

Summary recorded(const std::function<void()>& work) {
  profile::PhaseTimer timer(c10::kCPU);
  Recording recording(c10::kCPU);
  timer.enter(profile::Phase::forward);
  work();
  timer.pause();
  return summarise(recording.finish(), 1);
}

double flops_of_pass(const std::function<Tensor()>& forward) {
  return 1e9 * recorded([&] { forward().sum().backward(); }).gflop;
}

double flops_in_bf16(const std::function<Tensor()>& forward) {
  return flops_of_pass([&] {
    const Autocast region(torch::kCPU, torch::kBFloat16);
    return forward().to(torch::kFloat);
  });
}

Tensor rand(at::IntArrayRef sizes) { return torch::rand(sizes, torch::requires_grad()); }

struct Forced {
  explicit Forced(const char* path) { setenv("DEMI_ATTENTION", path, 1); }
  ~Forced() { unsetenv("DEMI_ATTENTION"); }
};

// 6 N + 12 L H Q T a token: N weights in products, L layers, H heads of size Q, T tokens of context
// (Chowdhery et al., 2022, "PaLM", appendix B; nanoGPT's estimate_mfu). The profile and the model
// FLOPs of a run are one figure, whichever kernel of attention runs.
TEST(FlopsOfPasses, OfAGptAreThoseOfThePaper) {
  const models::GPTOptions sizes{
      .vocabulary = 96, .context = 64, .width = 32, .layers = 2, .heads = 4};
  models::GPT model(sizes);
  const Tensor tokens = torch::arange(2 * 64).remainder(96).view({2, 64});
  const double weights = 2 * 12 * 32 * 32 + 96 * 32;
  const double wanted = 2 * 64 * (6 * weights + 12 * 2 * 4 * 8 * 64);
  ASSERT_EQ(wanted, 2 * 64 * models::training_flop(sizes, 64));
  const auto loss = [&] { return model->loss(tokens, tokens); };
  for (const char* path : {"libtorch", "fused", "tiles", "blocks", "blocks_16_bit"}) {
    const Forced attention(path);
    EXPECT_NEAR(flops_of_pass(loss), wanted, 1) << path;
    // The head asks the region for its dtype by a product of one number by one.
    EXPECT_NEAR(flops_in_bf16(loss) - 2, wanted, 1) << path << " in bf16";
  }
}

// Heads of keys that several heads of queries share make no product fewer.
TEST(FlopsOfPasses, OfAttentionWithSharedKeys) {
  const Tensor q = rand({2, 4, 32, 8}), k = rand({2, 2, 32, 8}), v = rand({2, 2, 32, 6});
  for (const char* path : {"fused", "tiles", "blocks"}) {
    const Forced forced(path);
    const auto attend = [&] { return attention(q, k, v, {.causal = true}); };
    EXPECT_NEAR(flops_in_bf16(attend), 3 * 2.0 * 2 * 4 * 32 * 32 * (8 + 6), 1) << path;
  }
}

// No query sees a key of another document.
TEST(FlopsOfPasses, OfDocumentsAreThoseOfEach) {
  const Tensor q = rand({1, 4, 64, 8});
  const auto attend = [&] {
    return attention(q, q, q, {.cu_seqlens = torch::tensor({0, 16, 64}), .causal = true});
  };
  for (const char* path : {"libtorch", "blocks"}) {
    const Forced forced(path);
    EXPECT_NEAR(flops_of_pass(attend), 3 * 4.0 * 4 * 8 * (16 * 16 + 48 * 48), 1) << path;
  }
}

// A cell has four gates, each of h (i + h) multiplications and additions: 8 h (h + i) a step.
// Backward has two products for each of forward.
TEST(FlopsOfPasses, OfAnLstmAreThoseOfItsGates) {
  const double h = 16, i = 24, steps = 7 * 3;
  torch::nn::LSTM one(torch::nn::LSTMOptions(24, 16));
  const auto forward = [&] { return std::get<0>(one->forward(rand({7, 3, 24}))); };
  EXPECT_NEAR(flops_of_pass(forward), 3 * steps * 8 * h * (h + i), 1);
  EXPECT_NEAR(flops_in_bf16(forward), 3 * steps * 8 * h * (h + i), 1);
  torch::nn::LSTM both(torch::nn::LSTMOptions(24, 16).num_layers(2).bidirectional(true));
  const auto twice = [&] { return std::get<0>(both->forward(rand({7, 3, 24}))); };
  const double wanted = 3 * steps * 2 * (8 * h * (h + i) + 8 * h * (h + 2 * h));
  EXPECT_NEAR(flops_of_pass(twice), wanted, 1);
  EXPECT_NEAR(flops_in_bf16(twice), wanted, 1);
}

// As cuDNN has all layers in one op, from its arguments.
TEST(FlopsOfPasses, OfCudnnsRecurrentLayers) {
  const auto layers = [](const char* name, std::int64_t first, std::int64_t mode) {
    Event one{.name = name, .shapes = {{7, 3, 24}}, .numbers = {{}}};
    one.numbers.resize(static_cast<std::size_t>(first));
    for (const std::int64_t number : {mode, 16L, 0L, 2L, 0L}) one.numbers.push_back({number});
    one.numbers.push_back({});   // dropout
    one.numbers.push_back({1});  // train
    one.numbers.push_back({1});  // bidirectional
    return one;
  };
  const double h = 16, i = 24, one_gate = 2 * 7 * 3 * 2 * (h * (i + h) + h * (2 * h + h));
  EXPECT_EQ(flops_of(layers("aten::_cudnn_rnn", 6, 2)), 4 * one_gate);
  EXPECT_EQ(flops_of(layers("aten::_cudnn_rnn", 6, 3)), 3 * one_gate);
  EXPECT_EQ(flops_of(layers("aten::_cudnn_rnn", 6, 0)), one_gate);
  EXPECT_EQ(flops_of(layers("aten::_cudnn_rnn_backward", 10, 2)), 2 * 4 * one_gate);
}

TEST(FlopsOfPasses, AreThoseThatPyTorchCounts) {
  const auto file =
      nlohmann::json::parse(std::ifstream(source_dir() / "benchmarks/peers/flops.json"));
  const Tensor x = rand({5, 24}), picture = rand({2, 4, 9, 9}), steps = rand({7, 3, 24});
  const auto conv = [&](const torch::nn::Conv2dOptions& options) {
    return torch::nn::Conv2d(options)->forward(picture);
  };
  const auto attend = [](int64_t queries, int64_t keys, bool causal) {
    const Tensor q = rand({2, 4, queries, 8}), k = rand({2, 4, keys, 8}), v = rand({2, 4, keys, 8});
    return at::scaled_dot_product_attention(q, k, v, {}, 0, causal);
  };
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(24, 16).num_layers(2));
  torch::nn::GRU gru(torch::nn::GRUOptions(24, 16).num_layers(2));
  const Tensor h = rand({2, 3, 16}), c = rand({2, 3, 16});
  const std::map<std::string, std::function<Tensor()>> passes{
      {"linear", [&] { return torch::nn::Linear(24, 16)->forward(x); }},
      {"batched product",
       [&] {
         return rand({3, 5, 24}).matmul(rand({3, 24, 7}));
       }},
      {"convolution", [&] { return conv(torch::nn::Conv2dOptions(4, 8, 3).stride(2).padding(1)); }},
      {"transposed convolution",
       [&] {
         return torch::nn::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(4, 8, 3).stride(2))
             ->forward(picture);
       }},
      {"attention", [&] { return attend(16, 32, false); }},
      {"causal attention", [&] { return attend(32, 32, true); }},
      {"lstm", [&] { return std::get<0>(lstm->forward(steps, std::tuple(h, c))); }},
      {"gru", [&] { return std::get<0>(gru->forward(steps, h)); }}};
  ASSERT_EQ(file["flops"].size(), passes.size());
  for (const auto& [name, pass] : passes)
    EXPECT_NEAR(flops_of_pass(pass), file["flops"].at(name).get<double>(), 1) << name;
}

// Golub and Van Loan, "Matrix computations", 1.1: 2 n m of a matrix by a vector, 2 n of two
// vectors.
TEST(FlopsOfPasses, OfVectorsAndInPlaceOps) {
  const torch::NoGradGuard no_grad;
  const auto counted = [](const std::function<void()>& work) { return 1e9 * recorded(work).gflop; };
  const Tensor a = torch::rand({5, 24}), b = torch::rand({24, 7}), row = torch::rand({24});
  EXPECT_NEAR(counted([&] { at::mv(a, row); }), 2 * 5 * 24, 1e-3);
  EXPECT_NEAR(counted([&] { at::dot(row, row); }), 2 * 24, 1e-3);
  EXPECT_NEAR(counted([&] { torch::zeros({5}).addmv_(a, row); }), 2 * 5 * 24, 1e-3);
  EXPECT_NEAR(counted([&] { torch::zeros({5, 7}).addmm_(a, b); }), 2 * 5 * 24 * 7, 1e-3);
}

// demi's own kernels call no op of LibTorch, and are work all the same.
TEST(FlopsOfPasses, KernelsOfDemisAreOps) {
  const InstructionSet& instructions = onednn_instruction_set();
  if (!instructions.amx_bf16 && !instructions.avx512_bf16)
    GTEST_SKIP() << "no AVX512_BF16: attention by tiles is LibTorch's";
  const Tensor q = torch::rand({2, 4, 256, 16}).to(torch::kBFloat16);
  const Forced forced("tiles");
  const Summary s = recorded([&] {
    const torch::NoGradGuard no_grad;
    for (int i = 0; i < 3; ++i) attention(q, q, q);
  });
  const auto found = std::ranges::find(s.ops, std::string("demi.attention"), &OpUse::name);
  ASSERT_NE(found, s.ops.end());
  EXPECT_EQ(found->calls, 3);
  EXPECT_EQ(found->dtype, "bf16");
  EXPECT_TRUE(found->is_low);
  EXPECT_GT(found->ms, 0);
  EXPECT_GT(s.low_time_share, 0.5);
}

}  // namespace
}  // namespace demi::profiler
