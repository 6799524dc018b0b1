#include "demi/optim/decay_groups.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "demi/optim/adamw.h"

namespace demi {
namespace {

TEST(DecayGroups, SpareBiasesAndNormalisation) {
  torch::nn::Sequential model(torch::nn::Linear(3, 4),
                              torch::nn::LayerNorm(torch::nn::LayerNormOptions({2, 4})),
                              torch::nn::Conv2d(1, 2, 3), torch::nn::BatchNorm2d(2));
  const auto groups = optim::decay_groups(*model);
  EXPECT_EQ(groups.decay.size(), 2U);     // the weights of Linear and Conv2d
  EXPECT_EQ(groups.no_decay.size(), 6U);  // two biases, weight and bias of both norms
  optim::AdamW optimizer(
      optim::with_decay_by_rule(*model, optim::AdamWOptions(1e-3).weight_decay(0.5)));
  const auto decay = [&](size_t g) {
    return static_cast<optim::AdamWOptions&>(optimizer.param_groups()[g].options()).weight_decay();
  };
  EXPECT_EQ(decay(0), 0.5);
  EXPECT_EQ(decay(1), 0);
}

struct Block : torch::nn::Module {
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(2, 2));
  at::Tensor scale = register_parameter("scale", torch::ones(2));
};

// LibTorch's modules() needs a module that a shared_ptr holds.
TEST(DecayGroups, TakeAModuleOnTheStack) {
  const Block block;
  const auto groups = optim::decay_groups(block);
  EXPECT_EQ(groups.decay.size(), 1U);
  EXPECT_EQ(groups.no_decay.size(), 2U);
  EXPECT_TRUE(groups.no_decay.front().is_same(block.scale));  // in the order of parameters()
}

}  // namespace
}  // namespace demi
