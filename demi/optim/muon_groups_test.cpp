#include "demi/optim/muon_groups.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "demi/core/error.h"
#include "demi/optim/adamw.h"
#include "demi/optim/multi_optimizer.h"

namespace demi::optim {
namespace {

using Tensors = std::vector<at::Tensor>;

std::vector<const at::TensorImpl*> ids(const Tensors& tensors) {
  std::vector<const at::TensorImpl*> all;
  for (const at::Tensor& one : tensors) all.push_back(one.unsafeGetTensorImpl());
  return all;
}

TEST(MuonGroups, ConvolutionsAreHiddenAndTheLastLinearIsTheHead) {
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(3, 8, 3));
  torch::nn::BatchNorm2d norm(8);
  torch::nn::Linear middle(8, 8), head(8, 10);
  torch::nn::Sequential model(conv, norm, torch::nn::ReLU(), middle, torch::nn::ReLU(), head);
  const MuonParameters found = muon_parameters(*model);
  EXPECT_EQ(ids(found.hidden), ids({conv->weight, middle->weight}));
  EXPECT_EQ(ids(found.others),
            ids({conv->bias, norm->weight, norm->bias, middle->bias, head->weight, head->bias}));
}

struct TiedImpl : torch::nn::Module {
  torch::nn::Embedding embedding{register_module("embedding", torch::nn::Embedding(11, 4))};
  torch::nn::Linear hidden{register_module("hidden", torch::nn::Linear(4, 4))};
  torch::nn::LayerNorm norm{
      register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})))};
};

TEST(MuonGroups, AHeadThatIsTheEmbeddingHidesNoOtherLayer) {
  const TiedImpl model;
  EXPECT_EQ(ids(muon_parameters(model).hidden), ids({model.hidden->weight}));
}

TEST(MuonGroups, HeadsCanBeNamed) {
  torch::nn::Linear head(4, 2), body(4, 4);
  torch::nn::Sequential model(head, body);
  EXPECT_EQ(ids(muon_parameters(*model).hidden), ids({head->weight}));
  EXPECT_EQ(ids(muon_parameters(*model, {head->weight}).hidden), ids({body->weight}));
  EXPECT_THROW(muon_parameters(*model, {torch::zeros(2)}), UsageError);
  EXPECT_THROW(muon_parameters(*model, {at::Tensor()}), UsageError);
}

TEST(MuonGroups, AreTheGroupsOfOneOptimizer) {
  torch::nn::Linear body(4, 4), head(4, 2);
  torch::nn::Sequential model(body, head);
  MultiOptimizer optimizer(
      muon_groups(*model, MuonOptions(0.02), AdamWOptions(3e-4).weight_decay(0.1)));
  EXPECT_EQ(optimizer.rule_name(), "Muon, AdamW, AdamW");
  const auto numbers = optimizer.group_numbers();
  EXPECT_EQ(numbers[0].at("lr"), 0.02);
  EXPECT_EQ(numbers[1].at("weight_decay"), 0.1);
  EXPECT_EQ(numbers[2].at("weight_decay"), 0);
  EXPECT_EQ(ids(optimizer.param_groups()[1].params()), ids({head->weight}));
  EXPECT_EQ(ids(optimizer.param_groups()[2].params()), ids({body->bias, head->bias}));
  model->forward(torch::ones({3, 4})).sum().backward();
  optimizer.step();
  EXPECT_FALSE(optimizer.last_step().skipped());
}

}  // namespace
}  // namespace demi::optim
