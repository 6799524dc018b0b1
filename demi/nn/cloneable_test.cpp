#include "demi/nn/cloneable.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <sstream>
#include <string>

#include "demi/autocast/apply.h"
#include "demi/autocast/autocast.h"
#include "demi/core/error.h"
#include "demi/nn/transformer_block.h"

// All modules of demi as citizens of LibTorch: tests/modules_in_libtorch_test.cpp.
namespace demi::nn {
namespace {

using testing::HasSubstr;

TransformerBlock some_block() {
  return TransformerBlock(TransformerBlockOptions{
      .width = 16, .heads = 2, .activation = Activation::swiglu, .qk_norm = true});
}

/// A program's own network around a block.
struct OwnerImpl : torch::nn::Cloneable<OwnerImpl> {
  OwnerImpl() { OwnerImpl::reset(); }
  void reset() override { block = register_module("block", some_block()); }
  at::Tensor forward(const at::Tensor& x) { return block->forward(x); }
  TransformerBlock block{nullptr};
};
TORCH_MODULE(Owner);

template <class Holder>
Holder copy_of(Holder& module) {
  return Holder(std::dynamic_pointer_cast<typename Holder::ContainedType>(module->clone()));
}

TEST(CloneOfABlock, HasItsWeightsAsAMemberOfACloneable) {
  Owner owner;
  const auto copy = copy_of(owner);
  const auto x = torch::randn({2, 3, 16});
  EXPECT_TRUE(torch::equal(owner->forward(x), Owner(copy)->forward(x)));
  for (const auto& item : owner->named_parameters()) {
    const torch::Tensor own = copy->named_parameters()[item.key()];
    EXPECT_TRUE(torch::equal(own, item.value())) << item.key();
    EXPECT_FALSE(own.is_alias_of(item.value())) << item.key();
  }
}

TEST(CloneOfABlock, KeepsFrozenParametersAndModesOfParts) {
  Owner owner;
  owner->block->attention->qkv->weight.set_requires_grad(false);
  owner->block->norm1->bias.set_requires_grad(false);
  owner->block->feed_forward->eval();
  const auto copy = copy_of(owner);
  for (const auto& item : owner->named_parameters())
    EXPECT_EQ(copy->named_parameters()[item.key()].requires_grad(), item.value().requires_grad())
        << item.key();
  for (const auto& item : owner->named_modules("", /*include_self=*/false))
    EXPECT_EQ(copy->named_modules("", false)[item.key()]->is_training(),
              item.value()->is_training())
        << item.key();
}

// Which a copy of LibTorch's modules loses, if its memory is replaced before its first use.
TEST(CloneOfABlock, KeepsItsPolicyInOtherMemory) {
  TransformerBlock block = some_block();
  demi::apply(Policy("float32"), *block);
  TransformerBlock copy = copy_of(block);
  for (const at::Tensor& p : copy->parameters()) p.set_data(torch::rand_like(p));
  const Autocast region(torch::kCPU, torch::kBFloat16);
  EXPECT_EQ(copy->attention->qkv->forward(torch::randn({2, 16})).scalar_type(), torch::kFloat);
}

TEST(CloneOfABlock, IsOfTheDtypeOfTheOriginal) {
  Owner owner;
  owner->to(torch::kDouble);
  const auto copy = copy_of(owner);
  const auto x = torch::randn({2, 3, 16}, torch::kDouble);
  EXPECT_TRUE(torch::equal(owner->forward(x), Owner(copy)->forward(x)));
}

struct LongerImpl : TransformerBlockImpl {
  using TransformerBlockImpl::TransformerBlockImpl;
  int added = 3;
};

// clone() of the base would give a TransformerBlock, without a word.
TEST(CloneOfABlock, RefusesAClassThatDerivesFromIt) {
  const LongerImpl longer(TransformerBlockOptions{.width = 8, .heads = 2});
  try {
    longer.clone();
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("LongerImpl"));
    EXPECT_THAT(error.what(), HasSubstr("override clone()"));
  }
}

TEST(BlockInSequential, RunsWithTheDefaultContext) {
  torch::manual_seed(3);
  auto first = some_block(), second = some_block();
  torch::nn::Sequential stack(first, Norm(NormOptions{.width = 16}), second,
                              torch::nn::Linear(16, 4));
  const auto x = torch::randn({2, 3, 16});
  const auto got = stack->forward(x);
  auto want = second->forward(stack->ptr<NormImpl>(1)->forward(first->forward(x)));
  EXPECT_TRUE(torch::equal(got, stack->ptr<torch::nn::LinearImpl>(3)->forward(want)));
  EXPECT_TRUE(torch::equal(first->forward(x, {.causal = true}), first->forward(x)));
}

TEST(BlockInSequential, TakesAContextAndACache) {
  const torch::NoGradGuard no_grad;
  torch::nn::AnyModule block(some_block());
  KeyValueCache cache(4);
  const auto x = torch::randn({1, 3, 16});
  const auto got = block.forward(x, TokenContext{.causal = true}, &cache);
  EXPECT_EQ(cache.tokens(), 3);
  EXPECT_TRUE(torch::allclose(got, block.forward(x), 1e-5, 1e-5));
}

TEST(BlockAsText, IsNamedWithItsSizes) {
  std::ostringstream text;
  text << *some_block();
  EXPECT_EQ(
      text.str(),
      "demi::nn::TransformerBlock(pre_norm=true)(\n"
      "  (norm1): demi::nn::Norm(16, layer_norm, eps=1e-05, weight=true, bias=true)\n"
      "  (attention): demi::nn::SelfAttention(16, heads=2, key_heads=2)(\n"
      "    (qkv): torch::nn::Linear(in_features=16, out_features=48, bias=true)\n"
      "    (out): torch::nn::Linear(in_features=16, out_features=16, bias=true)\n"
      "    (q_norm): demi::nn::Norm(8, rms_norm, eps=1e-05, weight=true, bias=false)\n"
      "    (k_norm): demi::nn::Norm(8, rms_norm, eps=1e-05, weight=true, bias=false)\n"
      "  )\n"
      "  (norm2): demi::nn::Norm(16, layer_norm, eps=1e-05, weight=true, bias=true)\n"
      "  (feed_forward): demi::nn::FeedForward(16, hidden=64, activation=swiglu, dropout=0)(\n"
      "    (gate): torch::nn::Linear(in_features=16, out_features=64, bias=true)\n"
      "    (up): torch::nn::Linear(in_features=16, out_features=64, bias=true)\n"
      "    (down): torch::nn::Linear(in_features=64, out_features=16, bias=true)\n"
      "  )\n"
      ")");
}

}  // namespace
}  // namespace demi::nn
