#include "demi/nn/batch_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <optional>
#include <sstream>
#include <string>

#include "demi/autocast/to_precision.h"
#include "demi/core/error.h"

// The function itself: demi/batch_norm/batch_norm_test.cpp. The module in LibTorch's containers:
// tests/modules_in_libtorch_test.cpp.
namespace demi::nn {
namespace {

using testing::HasSubstr;

/// Both modules train on the same batches.
void expect_same_training(BatchNorm2d& ours, torch::nn::BatchNorm2d& theirs) {
  for (int step = 0; step < 3; ++step) {
    const at::Tensor x = at::randn({4, 3, 9, 8});
    const at::Tensor y = ours->forward(x);
    const at::Tensor expected = at::max_pool2d(at::relu(theirs->forward(x)), 2);
    EXPECT_TRUE(y.allclose(expected, 1e-5, 1e-6));
  }
  for (const auto& item : theirs->named_buffers())
    EXPECT_TRUE(ours->named_buffers()[item.key()].allclose(item.value(), 1e-5, 1e-6)) << item.key();
}

TEST(BatchNorm2d, TrainsAsTorchsWithWhatFollows) {
  torch::manual_seed(0);
  for (const std::optional<double> momentum : {std::optional(0.3), std::optional<double>()}) {
    const auto options = torch::nn::BatchNormOptions(3).momentum(momentum).eps(1e-3);
    BatchNorm2d ours(BatchNorm2dOptions(options).relu(true).pool(2));
    torch::nn::BatchNorm2d theirs(options);
    expect_same_training(ours, theirs);
    ours->eval();
    theirs->eval();
    expect_same_training(ours, theirs);
  }
}

TEST(BatchNorm2d, HasTorchsNames) {
  BatchNorm2d ours(3);
  torch::nn::BatchNorm2d theirs(3);
  EXPECT_EQ(ours->named_parameters().keys(), theirs->named_parameters().keys());
  EXPECT_EQ(ours->named_buffers().keys(), theirs->named_buffers().keys());
  std::stringstream file;
  torch::save(theirs, file);
  torch::load(ours, file);
  EXPECT_TRUE(is_normalisation(*ours));
}

TEST(BatchNorm2d, DoesNothingThatItWasNotAskedFor) {
  torch::manual_seed(1);
  BatchNorm2d plain(2);
  const at::Tensor x = at::randn({2, 2, 9, 9});
  EXPECT_LT(plain->forward(x).min().item<float>(), 0);
  EXPECT_EQ(plain->forward(x).sizes(), x.sizes());
}

TEST(BatchNorm2d, SubsamplesByAPoolOfOnePlaceWithAStride) {
  torch::manual_seed(4);
  BatchNorm2d norm(BatchNorm2dOptions(2).pool(MaxPooling{{1, 1}, {2, 2}, {0, 0}}));
  torch::nn::BatchNorm2d plain(2);
  const at::Tensor x = at::randn({2, 2, 9, 9});
  const at::Tensor expected = at::max_pool2d(plain->forward(x), 1, 2);
  const at::Tensor y = norm->forward(x);
  ASSERT_EQ(y.sizes(), expected.sizes());
  EXPECT_TRUE(y.allclose(expected, 1e-5, 1e-6));
}

TEST(BatchNorm2d, AddsBeforeReLU) {
  torch::manual_seed(2);
  BatchNorm2d norm(BatchNorm2dOptions(2).relu(true));
  norm->eval();
  const at::Tensor x = at::randn({2, 2, 9, 9}), add = at::randn({2, 2, 9, 9});
  torch::nn::BatchNorm2d plain(2);
  plain->eval();
  EXPECT_TRUE(norm->forward_add(x, add).allclose(at::relu(plain->forward(x) + add), 1e-5, 1e-6));
}

TEST(BatchNorm2d, WithoutRunningStatisticsUsesThoseOfEachBatch) {
  torch::manual_seed(3);
  BatchNorm2d norm(torch::nn::BatchNormOptions(2).track_running_stats(false).affine(false));
  norm->eval();
  const at::Tensor y = norm->forward(at::randn({4, 2, 9, 9}) * 3 + 5);
  EXPECT_NEAR(y.mean().item<double>(), 0, 1e-5);
  EXPECT_NEAR(y.var().item<double>(), 1, 1e-2);
}

TEST(BatchNorm2d, IsCopiedWithOptionsModeAndFrozenParts) {
  BatchNorm2d norm(BatchNorm2dOptions(2).relu(true).pool(2));
  norm->options.eps(0.5);
  norm->weight.set_requires_grad(false);
  norm->forward(at::randn({2, 2, 4, 4}));
  norm->eval();
  const auto copy = std::dynamic_pointer_cast<BatchNorm2dImpl>(norm->clone());
  ASSERT_TRUE(copy);
  EXPECT_FALSE(copy->is_training());
  EXPECT_FALSE(copy->weight.requires_grad());
  EXPECT_TRUE(copy->bias.requires_grad());
  EXPECT_EQ(copy->options.eps(), 0.5);
  EXPECT_TRUE(copy->running_mean.equal(norm->running_mean));
  EXPECT_FALSE(copy->running_mean.is_alias_of(norm->running_mean));
  EXPECT_EQ(copy->num_batches_tracked.item<int64_t>(), 1);
  EXPECT_EQ(copy->forward(at::randn({2, 2, 4, 4})).sizes(), (std::vector<int64_t>{2, 2, 2, 2}));
  to_precision(*norm, torch::kBFloat16, /*keep_normalisation_fp32=*/false);
  EXPECT_EQ(std::dynamic_pointer_cast<BatchNorm2dImpl>(norm->clone())->weight.scalar_type(),
            torch::kBFloat16);
}

TEST(BatchNorm2d, SaysWhatItIs) {
  std::ostringstream text;
  text << BatchNorm2d(BatchNorm2dOptions(3).relu(true).pool(2));
  EXPECT_EQ(text.str(),
            "demi::nn::BatchNorm2d(3, eps=1e-05, momentum=0.1, affine=true, "
            "track_running_stats=true, relu=true, pool=[2, 2], stride=[2, 2], padding=[0, 0])");
}

TEST(BatchNorm2d, RefusesWhatItCannotDo) {
  const auto message = [](const auto& act) -> std::string {
    try {
      act();
    } catch (const UsageError& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_THAT(message([] { BatchNorm2d norm(-1); }), HasSubstr("num_features is negative"));
  EXPECT_THAT(message([] { BatchNorm2d norm(BatchNorm2dOptions(1).pool(0)); }),
              HasSubstr("the pool's size is too small"));
  EXPECT_THAT(message([] {
                BatchNorm2d(2)->forward(at::randn({1, 2, 1, 1}));
              }),
              HasSubstr("one value a channel"));
  EXPECT_THROW(BatchNorm2d(2)->forward(at::randn({1, 2, 3})), c10::Error);
}

}  // namespace
}  // namespace demi::nn
