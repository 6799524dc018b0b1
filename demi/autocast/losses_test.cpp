// A loss inside of the region, as published loops have it: given in FP32 by the lists of CPU and
// CUDA, whatever the model gave.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "demi/autocast/autocast.h"
#include "demi/autocast/op_lists.h"
#include "demi/core/error.h"

namespace demi {
namespace {

namespace F = torch::nn::functional;

// CUDA's lists, and nothing else, for the ops of a CPU.
OpPolicy cudas_lists() {
  OpPolicy policy;
  for (const auto& rule : default_op_rules(torch::kCPU)) policy.set(rule.op, OpCategory::unchanged);
  for (const auto& rule : default_op_rules(torch::kCUDA)) policy.set(rule.op, rule.category);
  return policy;
}

struct Loss {
  const char* name;
  std::function<at::Tensor(const at::Tensor& output)> of;
};

// Losses of an output (4, 3).
std::vector<Loss> losses() {
  const auto classes = torch::tensor({0, 2, 1, 0}),
             signs = torch::tensor({1., -1., 1., -1.}, torch::kFloat);
  const auto target = torch::rand({4, 3}), probabilities = torch::softmax(target, 1);
  return {
      {"cross_entropy", [=](auto& y) { return F::cross_entropy(y, classes); }},
      {"cross_entropy with smoothing",
       [=](auto& y) {
         return F::cross_entropy(y, classes, F::CrossEntropyFuncOptions().label_smoothing(0.1));
       }},
      {"cross_entropy of probabilities",
       [=](auto& y) { return F::cross_entropy(y, probabilities); }},
      {"nll_loss", [=](auto& y) { return F::nll_loss(y.log_softmax(1), classes); }},
      {"kl_div", [=](auto& y) { return torch::kl_div(y.log_softmax(1), probabilities); }},
      {"binary_cross_entropy_with_logits",
       [=](auto& y) { return F::binary_cross_entropy_with_logits(y, target); }},
      {"mse_loss", [=](auto& y) { return F::mse_loss(y, target); }},
      {"l1_loss", [=](auto& y) { return F::l1_loss(y, target); }},
      {"smooth_l1_loss", [=](auto& y) { return F::smooth_l1_loss(y, target); }},
      {"huber_loss", [=](auto& y) { return F::huber_loss(y, target); }},
      {"soft_margin_loss", [=](auto& y) { return F::soft_margin_loss(y.select(1, 0), signs); }},
      {"hinge_embedding_loss",
       [=](auto& y) { return F::hinge_embedding_loss(y.select(1, 0), signs); }},
      {"multi_margin_loss", [=](auto& y) { return F::multi_margin_loss(y, classes); }},
      {"margin_ranking_loss",
       [=](auto& y) { return F::margin_ranking_loss(y.select(1, 0), y.select(1, 1), signs); }},
      {"cosine_embedding_loss",
       [=](auto& y) { return F::cosine_embedding_loss(y, target, signs); }},
      {"triplet_margin_loss",
       [=](auto& y) { return F::triplet_margin_loss(y, target, probabilities); }},
  };
}

TEST(Losses, InsideOfTheRegionAreInFp32OnCpuAndByCudasLists) {
  torch::manual_seed(1);
  const auto x = torch::randn({4, 8}), w = torch::randn({8, 3});
  for (const auto& policy : {OpPolicy(), cudas_lists()})
    for (const auto& loss : losses()) {
      const Autocast region(torch::kCPU,
                            AutocastOptions{.dtype = torch::kBFloat16, .policy = policy});
      const auto output = torch::mm(x, w);
      ASSERT_EQ(output.scalar_type(), torch::kBFloat16);
      const auto seen = loss.of(output);
      EXPECT_EQ(seen.scalar_type(), torch::kFloat) << loss.name;
      const Autocast off(torch::kCPU, AutocastOptions{.enabled = false});
      // By a CPU's lists log_softmax is given as it comes; CUDA's do not name cross_entropy_loss,
      // which asks for a log_softmax of its input's dtype.
      EXPECT_TRUE(torch::allclose(seen, loss.of(output.to(torch::kFloat)), 0.01, 0.01))
          << loss.name;
    }
}

// On a CPU LibTorch runs it in FP32, on probabilities that were rounded to 16 bits before.
TEST(Losses, BinaryCrossEntropyIsRefusedByCudasListsWithTheCure) {
  const auto p = torch::rand({4}), target = torch::ones({4});
  const Autocast on_cpu(torch::kCPU);
  EXPECT_EQ(torch::binary_cross_entropy(p, target).scalar_type(), torch::kFloat);
  const Autocast region(torch::kCPU, AutocastOptions{.policy = cudas_lists()});
  try {
    torch::nn::BCELoss()(p, target);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("unsafe to autocast"));
    EXPECT_THAT(error.what(), testing::HasSubstr("torch::nn::BCEWithLogitsLoss"));
  }
}

}  // namespace
}  // namespace demi
