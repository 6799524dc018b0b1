#include "demi/nn/transformer_block.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <string_view>
#include <vector>

#include "demi/autocast/apply.h"
#include "demi/autocast/autocast.h"
#include "demi/autocast/policy.h"
#include "demi/autocast/to_precision.h"
#include "demi/checkpoint/safetensors.h"
#include "demi/core/error.h"
#include "demi/core/source_dir_testing.h"
#include "demi/kernels/cpu_kernels.h"

// The truth of whole models is in lab/models/gpt_test.cpp.
namespace demi::nn {
namespace {

using testing::HasSubstr;

double greatest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

// The file is written by tests/fixtures/transformer/make.py.
TEST(TransformerBlock, WithNormsBehindIsWhatPythonWroteOut) {
  const auto file = checkpoint::load_safetensors(
      source_dir() / "tests/fixtures/transformer/post_norm.safetensors");
  const auto of = [&](const std::string& name) { return file.tensors.at(name); };
  TransformerBlock block(TransformerBlockOptions{.width = 8, .heads = 2, .pre_norm = false});
  {
    const torch::NoGradGuard no_grad;
    for (auto& item : block->named_parameters()) item.value().copy_(of("weight." + item.key()));
  }
  const auto x = of("x").requires_grad_();
  const auto out = block->forward(x, {.causal = false, .mask = of("mask")});
  EXPECT_LE(greatest_difference(out, of("out")), 1e-5);
  (out * of("of_out")).sum().backward();
  EXPECT_LE(greatest_difference(x.grad(), of("gradient.x")), 1e-5);
  for (const auto& item : block->named_parameters())
    EXPECT_LE(greatest_difference(item.value().grad(), of("gradient." + item.key())), 1e-5)
        << item.key();
}

TEST(Norm, HasTheParametersAskedFor) {
  const auto names = [](const NormOptions& o) { return Norm(o)->named_parameters().keys(); };
  EXPECT_THAT(names({.width = 3}), testing::ElementsAre("weight", "bias"));
  EXPECT_THAT(names({.width = 3, .bias = false}), testing::ElementsAre("weight"));
  EXPECT_THAT(names({.width = 3, .weight = false}), testing::ElementsAre());
  EXPECT_THAT(names({.width = 3, .kind = NormKind::rms_norm}), testing::ElementsAre("weight"));
}

// 3 and 4 have a root mean square of sqrt(12.5).
TEST(Norm, StaysInFp32InAModelOf16Bits) {
  torch::nn::Module model;
  model.register_module("norm", Norm(NormOptions{.width = 3}));
  model.register_module("linear", torch::nn::Linear(3, 3));
  to_precision(model, torch::kBFloat16);
  for (const auto& item : model.named_parameters())
    EXPECT_EQ(item.value().scalar_type(),
              item.key().starts_with("norm.") ? torch::kFloat : torch::kBFloat16)
        << item.key();
}

TEST(Norm, DividesByTheRootMeanSquare) {
  Norm norm(NormOptions{.width = 2, .kind = NormKind::rms_norm, .eps = 0});
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    const auto out = norm->forward(torch::tensor({3.0, 4.0}).to(dtype));
    EXPECT_EQ(out.scalar_type(), dtype);
    EXPECT_NEAR(out[0].item<double>(), 3 / std::sqrt(12.5), dtype == torch::kFloat ? 1e-6 : 4e-3);
  }
}

// Feature i turns with feature i + size / 2, by position * theta^(-2 i / size).
TEST(Rotary, TurnsEachPairByItsAngle) {
  const auto x = torch::tensor({1.0F, 10.0F, 2.0F, 20.0F}).expand({1, 1, 3, 4});
  const auto y = rotate(x, rotary_angles(torch::tensor({0, 1, 5}), 4, 100));
  const auto expect = [&](int64_t token, double position) {
    for (const int i : {0, 1}) {
      const double angle = position * std::pow(100, -2.0 * i / 4), a = i ? 10 : 1, b = i ? 20 : 2;
      EXPECT_NEAR(y[0][0][token][i].item<double>(), a * cos(angle) - b * sin(angle), 1e-5);
      EXPECT_NEAR(y[0][0][token][i + 2].item<double>(), b * cos(angle) + a * sin(angle), 1e-5);
    }
  };
  expect(0, 0), expect(1, 1), expect(2, 5);
}

TEST(Rotary, PositionsRestartWithEachDocument) {
  const auto positions = document_positions(torch::tensor({0, 2, 2, 4, 7, 8}, torch::kInt), 2, 4);
  EXPECT_TRUE(torch::equal(positions, torch::tensor({{0L, 1L, 0L, 1L}, {0L, 1L, 2L, 0L}})));
}

// Dropout of each kind: another result in training, none in evaluation.
TEST(TransformerBlock, DropsOutInTrainingAlone) {
  torch::manual_seed(6);
  const auto x = torch::randn({2, 6, 8});
  for (const bool of_attention : {false, true}) {
    TransformerBlock block(TransformerBlockOptions{.width = 8,
                                                   .heads = 2,
                                                   .attention_dropout = of_attention ? 0.5 : 0,
                                                   .residual_dropout = of_attention ? 0 : 0.5});
    EXPECT_FALSE(torch::equal(block->forward(x), block->forward(x)));
    block->eval();
    EXPECT_TRUE(torch::equal(block->forward(x), block->forward(x)));
  }
}

TEST(TransformerBlock, RunsInARegion) {
  torch::manual_seed(6);
  const auto x = torch::randn({2, 40, 32});
  for (const auto activation :
       {Activation::gelu, Activation::gelu_tanh, Activation::swiglu, Activation::squared_relu}) {
    TransformerBlock block(TransformerBlockOptions{.width = 32,
                                                   .heads = 4,
                                                   .key_heads = 2,
                                                   .norm = NormKind::rms_norm,
                                                   .activation = activation,
                                                   .qk_norm = true});
    const TokenContext context{.rotary = rotary_angles(torch::arange(40), 8)};
    const auto want = block->forward(x, context);
    for (const auto dtype : {torch::kHalf, torch::kBFloat16}) {
      const Autocast region(torch::kCPU, dtype);
      const auto got = block->forward(x, context);
      EXPECT_EQ(got.scalar_type(), torch::kFloat);
      EXPECT_LE(((got - want).norm() / want.norm()).item<double>(), 1e-2);
      got.sum().backward();
    }
  }
}

/// Casts of activations (N, T, ...) that a thread makes, by operators of their own.
class SeenCasts {
 public:
  SeenCasts() {
    seen() = 0;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& op) {
          if (std::string_view(op.name()) == "aten::_to_copy" && !op.inputs().empty() &&
              op.inputs()[0].toTensor().dim() == 3)
            ++seen();
          return std::unique_ptr<at::ObserverContext>();
        })
            .needsInputs(true)
            .scopes({at::RecordScope::FUNCTION}));
  }
  ~SeenCasts() { at::removeCallback(handle_); }
  SeenCasts(const SeenCasts&) = delete;
  SeenCasts& operator=(const SeenCasts&) = delete;
  int count() const { return seen(); }

 private:
  static int& seen() {
    static thread_local int of_thread;
    return of_thread;
  }
  at::CallbackHandle handle_;
};

TEST(TransformerBlock, CastsNoActivationInARegion) {
  if (!kernels::cpu_kernels()) GTEST_SKIP() << "LibTorch's operators run";
  torch::manual_seed(8);
  const auto x = torch::randn({2, 40, 64}).requires_grad_();
  for (const auto activation : {Activation::gelu_tanh, Activation::swiglu}) {
    TransformerBlock block(TransformerBlockOptions{
        .width = 64, .heads = 4, .norm = NormKind::rms_norm, .activation = activation});
    const Autocast region(torch::kCPU, torch::kBFloat16);
    const SeenCasts casts;
    const Residual result = block->forward_residual(block->forward_residual({x}));
    EXPECT_EQ(casts.count(), 0);
    EXPECT_EQ(result.stream.scalar_type(), torch::kFloat);
    EXPECT_EQ(result.branch.scalar_type(), torch::kBFloat16);
  }
}

// What a stack leaves to the next norm changes no bit, of gradients neither.
TEST(TransformerBlock, LeavesItsSumToTheNormBehind) {
  torch::manual_seed(8);
  for (const bool pre_norm : {true, false})
    for (const NormKind kind : {NormKind::layer_norm, NormKind::rms_norm}) {
      const TransformerBlockOptions options{
          .width = 64, .heads = 4, .pre_norm = pre_norm, .norm = kind};
      TransformerBlock first(options), second(options);
      Norm norm(NormOptions{.width = 64, .kind = kind});
      const auto run = [&](bool joined) {
        const auto x =
            at::randn({2, 40, 64}, at::make_generator<at::CPUGeneratorImpl>(3)).requires_grad_();
        at::Tensor y;
        {
          const Autocast region(torch::kCPU, torch::kBFloat16);
          const Residual result = second->forward_residual(first->forward_residual({x}));
          y = joined ? norm->forward_add(result.stream, result.branch).norm
                     : norm->forward(second->forward(first->forward(x)));
        }
        y.square().sum().backward();
        std::vector<at::Tensor> all{y.detach(), x.grad()};
        for (const TransformerBlock& block : {first, second})
          for (at::Tensor& parameter : block->parameters()) {
            all.push_back(parameter.grad().clone());
            parameter.mutable_grad() = at::Tensor();
          }
        return all;
      };
      const auto joined = run(true), apart = run(false);
      for (std::size_t i = 0; i < joined.size(); ++i) EXPECT_TRUE(joined[i].equal(apart[i])) << i;
    }
}

// A policy that keeps a part in FP32 gives that part rows in FP32.
TEST(TransformerBlock, GivesEachPartRowsInItsDtype) {
  torch::manual_seed(8);
  const auto x = torch::randn({2, 40, 64});
  TransformerBlock block(
      TransformerBlockOptions{.width = 64, .heads = 4, .activation = Activation::swiglu});
  TransformerBlock copy = std::dynamic_pointer_cast<TransformerBlockImpl>(block->clone());
  demi::apply(Policy("float32"), *copy->feed_forward->gate);
  const auto by_hand = [&](TransformerBlock of) {
    const auto seen = x + of->attention->forward(of->norm1->forward(x));
    return seen + of->feed_forward->forward(of->norm2->forward(seen));
  };
  const Autocast region(torch::kCPU, torch::kBFloat16);
  for (TransformerBlock one : {block, copy}) EXPECT_TRUE(by_hand(one).equal(one->forward(x)));
  EXPECT_FALSE(block->forward(x).equal(copy->forward(x)));
}

TEST(Norm, AddsAndNormalises) {
  torch::manual_seed(9);
  const auto x = torch::randn({3, 8}), add = torch::randn({3, 8});
  for (const NormKind kind : {NormKind::layer_norm, NormKind::rms_norm}) {
    Norm norm(NormOptions{.width = 8, .kind = kind});
    const SumAndNorm result = norm->forward_add(x, add, torch::kBFloat16);
    EXPECT_TRUE(result.sum.equal(x + add));
    EXPECT_EQ(result.norm.scalar_type(), torch::kBFloat16);
    EXPECT_TRUE(result.norm.equal(norm->forward(x + add).to(torch::kBFloat16)));
  }
}

// What is cut into pieces, each after what is in the cache, is what is computed at once.
TEST(TransformerBlock, GoesOnFromACache) {
  torch::manual_seed(7);
  const torch::NoGradGuard no_grad;
  const auto x = torch::randn({2, 9, 8});
  for (const std::int64_t key_heads : {4, 2})
    for (const bool pre_norm : {true, false}) {
      TransformerBlock block(TransformerBlockOptions{
          .width = 8, .heads = 4, .key_heads = key_heads, .pre_norm = pre_norm});
      KeyValueCache cache(9);
      for (int round = 0; round < 2; ++round) {
        std::vector<at::Tensor> parts;
        for (const auto& part : x.split_with_sizes({4, 1, 3, 1}, 1))
          parts.push_back(block->forward(part, {}, &cache));
        EXPECT_EQ(cache.tokens(), 9);
        EXPECT_LE(greatest_difference(torch::cat(parts, 1), block->forward(x)), 1e-5);
        cache.clear();
      }
    }
}

// Without causal, the tokens of a piece see each other and all before them.
TEST(TransformerBlock, SeesAllOfACacheWithoutCausal) {
  torch::manual_seed(7);
  const torch::NoGradGuard no_grad;
  const auto x = torch::randn({1, 6, 8});
  SelfAttention attention(SelfAttentionOptions{.width = 8, .heads = 2});
  KeyValueCache cache(6);
  attention->forward(x.narrow(1, 0, 4), {.causal = false}, &cache);
  const auto got = attention->forward(x.narrow(1, 4, 2), {.causal = false}, &cache);
  const auto want = attention->forward(x, {.causal = false}).narrow(1, 4, 2);
  EXPECT_LE(greatest_difference(got, want), 1e-5);
}

template <class Work>
std::string refusal_by(Work work) {
  try {
    work();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "nothing thrown";
}

TEST(TransformerBlock, RefusesWhatDoesNotFit) {
  const auto made = [](const TransformerBlockOptions& o) {
    return refusal_by([&] { TransformerBlock block(o); });
  };
  EXPECT_EQ(made({.width = 8, .heads = 2}), "nothing thrown");
  EXPECT_THAT(made({.width = 0}), HasSubstr("width"));
  EXPECT_THAT(made({.width = 8, .heads = 3}), HasSubstr("heads do not divide"));
  EXPECT_THAT(made({.width = 8, .heads = 4, .key_heads = 3}), HasSubstr("key_heads"));
  EXPECT_THAT(made({.width = 8, .heads = 2, .hidden = -1}), HasSubstr("hidden"));
  EXPECT_THAT(made({.width = 8, .heads = 2, .eps = -1}), HasSubstr("eps"));
  EXPECT_THAT(made({.width = 8, .heads = 2, .attention_dropout = 2}), HasSubstr("probability"));
  EXPECT_THAT(made({.width = 8, .heads = 2, .residual_dropout = NAN}), HasSubstr("probability"));
  TransformerBlock block(TransformerBlockOptions{.width = 8, .heads = 2});
  EXPECT_THAT(refusal_by([&] { block->forward(torch::ones({2, 3, 9})); }), HasSubstr("(*, 8)"));
  EXPECT_THAT(refusal_by([&] {
                block->attention->forward(torch::ones({3, 8}));
              }),
              HasSubstr("(N, T, 8)"));
  EXPECT_THAT(refusal_by([&] { rotary_angles(torch::arange(3), 7); }), HasSubstr("even"));
  EXPECT_THAT(refusal_by([&] {
                document_positions(torch::tensor({0, 3}), 1, 4);
              }),
              HasSubstr("0 to 4"));
}

TEST(KeyValueCache, RefusesWhatDoesNotFit) {
  EXPECT_THAT(refusal_by([] { KeyValueCache cache(0); }), HasSubstr("room"));
  KeyValueCache cache(4);
  const auto append = [&](const at::Tensor& t) { return refusal_by([&] { cache.append(t, t); }); };
  const auto fits = torch::ones({2, 1, 3, 8});
  EXPECT_THAT(append(fits.expand({2, 1, 3, 8}).clone().requires_grad_()), HasSubstr("gradient"));
  EXPECT_EQ(append(fits), "nothing thrown");
  EXPECT_THAT(append(fits), HasSubstr("at most 4"));
  const auto one = fits.narrow(2, 0, 1);
  EXPECT_THAT(append(one.narrow(0, 0, 1)), HasSubstr("not like those before"));
  EXPECT_THAT(append(one.expand({2, 2, 1, 8})), HasSubstr("not like those before"));
  EXPECT_THAT(append(one.narrow(3, 0, 4)), HasSubstr("not like those before"));
  EXPECT_THAT(append(one.to(torch::kBFloat16)), HasSubstr("not like those before"));
  EXPECT_EQ(cache.tokens(), 3) << "nothing was added";
  EXPECT_EQ(append(one), "nothing thrown");
  cache.clear();
  EXPECT_EQ(append(torch::ones({1, 2, 4, 4}, torch::kBFloat16)), "nothing thrown") << "anew";
  TransformerBlock block(TransformerBlockOptions{.width = 8, .heads = 2});
  EXPECT_THAT(
      refusal_by([&] {
        block->forward(torch::ones({1, 2, 8}), {.cu_seqlens = torch::tensor({0, 2})}, &cache);
      }),
      HasSubstr("documents take no cache"));
}

// Its memory is not InferenceMode's, which nothing outside may write to.
TEST(KeyValueCache, IsUsedInsideAndOutsideOfInferenceMode) {
  const torch::NoGradGuard no_grad;
  const auto append = [](KeyValueCache& cache, double value) {
    const auto added = torch::full({1, 2, 1, 4}, value);
    return cache.append(added, added).first;
  };
  for (const bool inside_first : {true, false}) {
    KeyValueCache cache(6);
    for (int round = 0; round < 2; ++round) {
      for (int token = 0; token < 6; ++token) {
        const c10::InferenceMode mode((token % 2 == 0) == inside_first);
        const auto so_far = append(cache, token);
        EXPECT_TRUE(torch::equal(so_far.select(1, 0).select(2, 0)[0],
                                 torch::arange(token + 1, torch::kFloat)));
      }
      cache.clear();
    }
  }
}

}  // namespace
}  // namespace demi::nn
