// A network that computes its loss by pieces. Truth: the same training with the output and the
// loss by name.
#include "demi/train/own_loss.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <stdexcept>

#include "demi/nn/linear_cross_entropy.h"
#include "demi/train/small_testing.h"

namespace demi::train {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using testing::Rows;
using testing::Small;

// `whole`: whether anything may ask for the output.
Network with_own_loss(const Small& small, bool whole = false) {
  Network result = network(small.model);
  result.loss = [model = small.model](const data::Batch& batch, double label_smoothing) {
    auto [mean, right] = linear_cross_entropy_and_right(
        batch.input, model->weight, batch.target,
        {.linear_bias = model->bias, .label_smoothing = label_smoothing, .batch_chunk_size = 3});
    return OwnLoss{mean, right};
  };
  if (!whole)
    result.forward = [](const data::Batch&) -> at::Tensor { throw std::logic_error("whole"); };
  return result;
}

struct Both {
  Small by_name{16}, own{16};
  History expected, seen;

  // Some targets are ignored. Of the rows to test on a whole batch is, which counts for nothing.
  explicit Both(TrainerOptions options) {
    at::Tensor target = by_name.target.clone();
    target.slice(0, 0, 3).fill_(kIgnoredClass);
    const Rows rows(by_name.input, target.clone(), 4);
    target.slice(0, 12, 16).fill_(kIgnoredClass);
    const Rows test(by_name.input, target, 4);
    options.epochs = 3;
    options.read_every = 1;
    expected = by_name.trainer(options).fit(rows, &test);
    options.optimizers = {own.optimizer};
    seen = Trainer(with_own_loss(own), options).fit(rows, &test);
  }
};

void expect_near(const Both& both, double bound) {
  ASSERT_EQ(both.seen.steps.size(), both.expected.steps.size());
  for (std::size_t i = 0; i < both.seen.steps.size(); ++i)
    if (!std::isnan(both.expected.steps[i].loss))
      EXPECT_NEAR(both.seen.steps[i].loss, both.expected.steps[i].loss, bound) << i;
    else
      EXPECT_TRUE(std::isnan(both.seen.steps[i].loss)) << i;
  for (std::size_t i = 0; i < both.seen.epochs.size(); ++i) {
    const EpochRecord &seen = both.seen.epochs[i], &expected = both.expected.epochs[i];
    EXPECT_NEAR(seen.loss, expected.loss, bound);
    EXPECT_NEAR(*seen.accuracy, *expected.accuracy, 1e-12);
    EXPECT_NEAR(seen.validation->loss, expected.validation->loss, bound);
    EXPECT_NEAR(*seen.validation->accuracy, *expected.validation->accuracy, 1e-12);
  }
  EXPECT_TRUE(torch::allclose(both.own.weight(), both.by_name.weight(), 0, bound));
}

TEST(OwnLoss, TrainsAndEvaluatesAsTheLossByName) {
  const double whole = 1e-6;
  expect_near(Both({}), whole);
  expect_near(Both({.label_smoothing = 0.1}), whole);
  expect_near(Both({.loss = {Loss::cross_entropy, 3}, .accumulate = 2}), whole);
  expect_near(Both({.clip_norm = 0.1, .ema_decay = 0.9}), whole);
  expect_near(
      Both({.precision = parse_precision("fp16"), .loss_scale = {LossScale::Kind::fixed, 1024}}),
      3e-3);
  expect_near(Both({.precision = parse_precision("bf16")}), 3e-2);
}

TEST(OwnLoss, IsLeftOutWhereSomethingElseReadsTheOutput) {
  const Small small;
  const Rows rows = small.loader();
  const auto is_whole = [&](TrainerOptions options, bool validates) {
    options.optimizers = {small.optimizer};
    Trainer trainer(with_own_loss(small), options);
    try {
      trainer.fit(rows, validates ? &rows : nullptr);
    } catch (const std::logic_error& error) {
      return std::string(error.what()) == "whole";
    }
    return false;
  };
  EXPECT_FALSE(is_whole({}, true));
  EXPECT_TRUE(is_whole({.gradient_penalty = 0.1}, false));
  EXPECT_TRUE(is_whole({.loss = LossFunction([](const at::Tensor& output, const at::Tensor&) {
                          return output.sum();
                        })},
                       false));
  const Metric metric{.name = "sum", .sum = [](const at::Tensor& output, const at::Tensor&) {
                        return output.sum();
                      }};
  EXPECT_FALSE(is_whole({.metrics = {metric}}, false)) << "only validation computes metrics";
  EXPECT_TRUE(is_whole({.metrics = {metric}}, true));
  const EvaluateOptions by_class{.per_class = true};
  EXPECT_THROW(evaluate(with_own_loss(small), rows, by_class), std::logic_error);
  const Evaluation of_classes = evaluate(with_own_loss(small, /*whole=*/true), rows, by_class);
  EXPECT_EQ(of_classes.class_accuracy.size(), 3U);
}

TEST(OwnLoss, RefusesWhatIsNoMeanAndNoAnswerForEachTarget) {
  const Small small;
  const data::Batch batch = small.loader().batch(0, 0);
  Network odd = with_own_loss(small);
  const auto saying = [&](const OwnLoss& loss) {
    odd.loss = [&](const data::Batch&, double) { return loss; };
    return message_of([&] { own_loss(odd, Loss::cross_entropy, batch); });
  };
  EXPECT_THAT(saying({}), HasSubstr("not one number; seen: an undefined tensor"));
  EXPECT_THAT(saying({torch::rand({4})}), HasSubstr("not one number; seen: [4] Float"));
  EXPECT_THAT(saying({torch::ones({}, torch::kLong)}), HasSubstr("seen: [] Long"));
  EXPECT_THAT(saying({torch::ones({}), torch::ones({2}, torch::kBool)}),
              HasSubstr("right answers do not fit the target; seen: [2] Bool"));
}

}  // namespace
}  // namespace demi::train
