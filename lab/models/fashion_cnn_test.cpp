#include "lab/models/fashion_cnn.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include "lab/models/seeded.h"

namespace demi::models {
namespace {

FashionCNN seeded_model(uint64_t seed) {
  const Seeded seeded(seed);
  return FashionCNN();
}

TEST(FashionCNN, GivesOneLogitAClass) {
  FashionCNN model = seeded_model(0);
  EXPECT_EQ(model->forward(at::randn({3, 1, 28, 28})).sizes(), (std::vector<int64_t>{3, 10}));
  const auto channels_last = at::randn({2, 1, 28, 28}).contiguous(c10::MemoryFormat::ChannelsLast);
  EXPECT_EQ(model->forward(channels_last).sizes(), (std::vector<int64_t>{2, 10}));
}

TEST(FashionCNN, HasTheParametersOfItsLayers) {
  int64_t count = 0;
  for (const at::Tensor& p : seeded_model(0)->parameters()) count += p.numel();
  // 9 in out for each convolution, 2 out for each BatchNorm, 128 x 10 + 10 for the linear layer.
  const int64_t convolutions = 9 * (1 * 32 + 32 * 32 + 32 * 64 + 64 * 64 + 64 * 128);
  EXPECT_EQ(count, convolutions + 2 * (32 + 32 + 64 + 64 + 128) + 128 * 10 + 10);
}

TEST(Seeded, GivesTheSameWeightsWhateverWasDrawnBefore) {
  const auto first = seeded_model(7)->parameters();
  at::randn({5});
  const auto second = seeded_model(7)->parameters();
  const auto other = seeded_model(8)->parameters();
  for (std::size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(at::equal(first[i], second[i]));
  EXPECT_FALSE(at::equal(first[0], other[0]));
}

TEST(Seeded, LeavesTheGeneratorAsItWas) {
  torch::manual_seed(1);
  const at::Tensor expected = at::randn({3});
  torch::manual_seed(1);
  seeded_model(7);
  EXPECT_TRUE(at::equal(at::randn({3}), expected));
}

}  // namespace
}  // namespace demi::models
