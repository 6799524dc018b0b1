#include "demi/optim/state_groups.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "demi/optim/adamw.h"

namespace demi::optim {
namespace {

struct Tied : torch::nn::Module {
  torch::nn::Embedding embedding = register_module("embedding", torch::nn::Embedding(100, 64));
  at::Tensor head = register_parameter("head", embedding->weight);
  at::Tensor bias = register_parameter("bias", torch::zeros(100));
};

TEST(StateGroups, PutEmbeddingsAndWhatIsTiedToThemIntoFp32) {
  const Tied model;
  const StateGroups groups = state_groups(model);
  ASSERT_EQ(groups.fp32.size(), 1U);
  EXPECT_TRUE(groups.fp32.front().is_same(model.embedding->weight));
  ASSERT_EQ(groups.coded.size(), 1U);
  EXPECT_TRUE(groups.coded.front().is_same(model.bias));
}

TEST(StateGroups, KeepTheStatesOfEmbeddingsInFp32) {
  torch::nn::Sequential model(torch::nn::Embedding(100, 64), torch::nn::Linear(64, 100));
  AdamW adamw(with_states_by_rule(*model, AdamWOptions(0.5)), {}, {.moments = Moments::bf16});
  ASSERT_EQ(adamw.param_groups().size(), 2U);
  EXPECT_EQ(static_cast<AdamWOptions&>(adamw.param_groups()[0].options()).lr(), 0.5);
  model->forward(at::zeros({3}, at::kLong)).sum().backward();
  adamw.step();
  EXPECT_EQ(adamw.state_tensors().at("0.exp_avg").scalar_type(), at::kFloat);
  EXPECT_EQ(adamw.state_tensors().at("1.exp_avg").scalar_type(), at::kBFloat16);
}

TEST(StateGroups, AreOneGroupWithoutEmbeddings) {
  const torch::nn::Linear model(3, 4);
  EXPECT_EQ(with_states_by_rule(*model, AdamWOptions(0.5)).size(), 1U);
}

TEST(StateGroups, AGroupInheritsAndKeepsWhatItSays) {
  const at::Tensor p = at::zeros({5000}).requires_grad_(), q = at::zeros({5000}).requires_grad_();
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{p}, std::make_unique<AdamWOptions>(0.1));
  AdamW inherits(groups, AdamWOptions(0.1).fp32_states(true), {.moments = Moments::bf16});
  p.mutable_grad() = at::ones({5000});
  inherits.step();
  EXPECT_EQ(inherits.state_tensors().at("0.exp_avg").scalar_type(), at::kFloat);
  AdamW says({q}, AdamWOptions(0.1).fp32_states(true), {.moments = Moments::bf16});
  says.prepare_state(inherits.state_tensors(), inherits.group_numbers())();
  q.mutable_grad() = at::ones({5000});
  says.step();
  EXPECT_EQ(says.state_tensors().at("0.exp_avg").scalar_type(), at::kFloat) << "after loading";
  static_cast<AdamWOptions&>(says.param_groups()[0].options()).fp32_states(false);
  says.step();
  EXPECT_EQ(says.state_tensors().at("0.exp_avg").scalar_type(), at::kBFloat16);
}

}  // namespace
}  // namespace demi::optim
