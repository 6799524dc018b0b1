#include "demi/autocast/to_precision.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "demi/autocast/autocast.h"
#include "demi/autocast/normalisation.h"
#include "demi/core/error.h"

namespace demi {
namespace {

torch::nn::Sequential convolutional_model() {
  return torch::nn::Sequential(
      torch::nn::Conv2d(3, 8, 3), torch::nn::BatchNorm2d(8), torch::nn::GroupNorm(2, 8),
      torch::nn::InstanceNorm2d(torch::nn::InstanceNorm2dOptions(8).affine(true)),
      torch::nn::Flatten(), torch::nn::Linear(8 * 6 * 6, 16),
      torch::nn::LayerNorm(torch::nn::LayerNormOptions({16})), torch::nn::Linear(16, 4));
}

class ToPrecision : public testing::TestWithParam<torch::Dtype> {};

TEST_P(ToPrecision, NormalisationStaysFp32WithItsStatisticsAndIntegersUntouched) {
  auto model = convolutional_model();
  to_precision(*model, GetParam());
  for (const auto& child : model->children()) {
    const auto wanted = is_normalisation(*child) ? torch::kFloat : GetParam();
    for (const auto& p : child->parameters()) EXPECT_EQ(p.scalar_type(), wanted) << child->name();
    for (const auto& b : child->named_buffers())
      EXPECT_EQ(b.value().scalar_type(), b.key() == "num_batches_tracked" ? torch::kLong : wanted)
          << b.key();
  }
}

TEST_P(ToPrecision, ForwardAndBackwardRunInARegionAndByACastInput) {
  auto model = convolutional_model();
  to_precision(*model, GetParam());
  const auto input = torch::randn({2, 3, 8, 8});
  {
    Autocast region(torch::kCPU, GetParam());
    EXPECT_EQ(model->forward(input).scalar_type(), GetParam());
  }
  const auto output = model->forward(to_precision(input, GetParam()));
  EXPECT_EQ(output.scalar_type(), GetParam());
  output.to(torch::kFloat).sum().backward();
  for (const auto& p : model->parameters()) EXPECT_EQ(p.grad().scalar_type(), p.scalar_type());
}

INSTANTIATE_TEST_SUITE_P(Dtypes, ToPrecision, testing::Values(torch::kHalf, torch::kBFloat16));

TEST(ToPrecisionOnce, KeepsTensorObjectsAndDropsGradients) {
  torch::nn::Linear layer(3, 3);
  const auto held = layer->weight;
  layer->forward(torch::ones({1, 3})).sum().backward();
  to_precision(*layer, torch::kBFloat16);
  EXPECT_TRUE(held.is_same(layer->weight));
  EXPECT_EQ(held.scalar_type(), torch::kBFloat16);
  EXPECT_FALSE(held.grad().defined());
}

TEST(ToPrecisionOnce, DropsTheGradientsOfWhatHasTheDtypeToo) {
  auto model = convolutional_model();
  model->forward(torch::randn({2, 3, 8, 8})).sum().backward();
  to_precision(*model, torch::kBFloat16);
  for (const auto& item : model->named_parameters())
    EXPECT_FALSE(item.value().grad().defined()) << item.key();
}

TEST(ToPrecisionOnce, EverythingWhenAskedAndBackAgain) {
  auto model = convolutional_model();
  to_precision(*model, torch::kHalf, /*keep_normalisation_fp32=*/false);
  for (const auto& p : model->parameters()) EXPECT_EQ(p.scalar_type(), torch::kHalf);
  EXPECT_EQ(model[1]->as<torch::nn::BatchNorm2d>()->running_mean.scalar_type(), torch::kHalf);
  to_precision(*model, torch::kHalf);
  EXPECT_EQ(model[1]->as<torch::nn::BatchNorm2d>()->running_mean.scalar_type(), torch::kFloat);
  to_precision(*model, torch::kDouble);
  for (const auto& p : model->parameters()) EXPECT_EQ(p.scalar_type(), torch::kDouble);
}

struct OwnNormImpl : torch::nn::Module, Normalisation {
  OwnNormImpl() { register_parameter("weight", torch::ones(3)); }
  at::Tensor forward(const at::Tensor& x) { return x; }
};

TEST(ToPrecisionOnce, NormalisationsOfOthersStayFp32) {
  torch::nn::Sequential model(std::make_shared<OwnNormImpl>(), torch::nn::Linear(3, 3));
  to_precision(*model, torch::kBFloat16);
  EXPECT_EQ(model->named_parameters()["0.weight"].scalar_type(), torch::kFloat);
  EXPECT_EQ(model->named_parameters()["1.weight"].scalar_type(), torch::kBFloat16);
}

TEST(ToPrecisionOnce, RecurrentLayersRun) {
  torch::nn::LSTM lstm(4, 5);
  to_precision(*lstm, torch::kBFloat16);
  const auto output = std::get<0>(lstm->forward(torch::randn({3, 2, 4}).to(torch::kBFloat16)));
  EXPECT_EQ(output.scalar_type(), torch::kBFloat16);
}

TEST(ToPrecisionOnce, OtherDtypesAreRefusedBeforeAnythingChanges) {
  torch::nn::Linear layer(2, 2);
  EXPECT_THROW(to_precision(*layer, torch::kInt), UsageError);
  EXPECT_EQ(layer->weight.scalar_type(), torch::kFloat);
}

}  // namespace
}  // namespace demi
