// Loaders and rows of kinds that trained wrongly, or ended in a message of LibTorch's. Truth: the
// loop that one would write by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "demi/optim/sgd.h"
#include "demi/train/small_testing.h"
#include "demi/train/trainer.h"

namespace demi::train {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using testing::message_of;
using testing::Rows;
using testing::Small;

TEST(OddData, BatchesMayHaveNoTargets) {
  Small s, by_hand;
  TrainerOptions options{.epochs = 2};
  options.losses = [](const Network& net, const data::Batch& batch) {
    return std::vector{net.forward(batch).square().mean()};
  };
  options.loss = [](const at::Tensor& output, const at::Tensor&) { return output.square().mean(); };
  class Inputs : public Rows {
   public:
    explicit Inputs(const at::Tensor& x) : Rows(x, x, 4) {}
    data::Batch batch(int64_t epoch, int64_t position) const override {
      data::Batch one = Rows::batch(epoch, position);
      one.target = at::Tensor();
      return one;
    }
  };
  const Inputs inputs(s.input);
  const History history = s.trainer(options).fit(inputs, &inputs);
  torch::optim::SGD plain(by_hand.model->parameters(), 0.1);
  std::vector<double> losses;
  for (int epoch = 0; epoch < 2; ++epoch)
    for (const int64_t start : {0, 4}) {
      plain.zero_grad();
      const at::Tensor loss = by_hand.model(s.input.slice(0, start, start + 4)).square().mean();
      losses.push_back(loss.item<double>());
      loss.backward();
      plain.step();
    }
  EXPECT_TRUE(torch::equal(s.weight(), by_hand.weight()));
  EXPECT_FALSE(history.failed);
  for (std::size_t i = 0; i < losses.size(); ++i)
    EXPECT_NEAR(history.steps[i].loss, losses[i], 1e-6);
  EXPECT_EQ(history.epochs[1].examples, 8);
  EXPECT_NEAR(history.epochs[1].validation->loss, s.model(s.input).square().mean().item<double>(),
              1e-6);
  EXPECT_THAT(message_of([&] { s.trainer().fit(inputs); }), HasSubstr("the batch has no target"));
}

TEST(OddData, NothingToTrainOrValidateOnIsRefused) {
  Small s;
  const Rows none(torch::zeros({0, 6}), torch::zeros({0}, torch::kLong), 4);
  EXPECT_THAT(message_of([&] { s.trainer().fit(none); }), HasSubstr("nothing to train on"));
  const Rows rows = s.loader();
  EXPECT_THAT(message_of([&] { s.trainer().fit(rows, &none); }),
              HasSubstr("nothing to validate on"));
  const Evaluation empty = evaluate(network(s.model), none, {.metrics = {top_k(1)}});
  EXPECT_TRUE(std::isnan(empty.loss));
  EXPECT_FALSE(empty.accuracy);
  EXPECT_TRUE(std::isnan(empty.metrics.at(0).second));
}

TEST(OddData, HalfOfThePairIsRefused) {
  Small s;
  const auto fitted = [&](const at::Tensor& x, const at::Tensor& y, const TensorPair& validation) {
    return message_of([&] { s.trainer().fit(x, y, {.validation = validation}); });
  };
  EXPECT_THAT(fitted(s.input, {}, {}), HasSubstr("x alone"));
  EXPECT_THAT(fitted({}, s.target, {}), HasSubstr("y alone"));
  EXPECT_THAT(fitted(s.input, s.target, {.x = {}, .y = s.target}),
              HasSubstr("half of the validation"));
  EXPECT_THAT(fitted(s.input, s.target, {.x = s.input, .y = {}}),
              HasSubstr("half of the validation"));
}

TEST(OddData, Fp64InputsTrainAsFp32OnesInEveryPrecision) {
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    Small s, doubles;
    doubles.input = doubles.input.to(torch::kDouble);
    s.trainer({.precision = parse_precision(precision)}).fit(s.loader());
    doubles.trainer({.precision = parse_precision(precision)}).fit(doubles.loader());
    EXPECT_TRUE(torch::equal(s.weight(), doubles.weight())) << precision;
  }
}

/// Collects the warnings while it lives.
class Warnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
  std::vector<std::string> texts;
};

TEST(OddData, OneRowWithANaNIsToldOf) {
  Small s;
  s.input[5][0] = NAN;  // of the second batch
  TrainerOptions options{.epochs = 3};
  options.optimizers = {std::make_shared<optim::SGD>(s.model->parameters(), 0.1)};
  Warnings warnings;
  const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
  const History history = s.trainer(options).fit(s.loader(2));
  EXPECT_FALSE(history.failed) << "the other steps have trained";
  ASSERT_EQ(warnings.texts.size(), 1U) << "once a fit";
  EXPECT_THAT(warnings.texts[0], AllOf(HasSubstr("mean loss of epoch 1 is nan"),
                                       HasSubstr("1 of its 4 steps, first in step 3")));
}

// While the scale is found the penalty may be Inf where every example is right.
TEST(OddData, APenaltyThatOverflowsIsNamedAsACause) {
  Small s;
  s.input.mul_(40);
  TrainerOptions options{
      .epochs = 2, .precision = parse_precision("fp16"), .gradient_penalty = 0.01};
  options.scaler.init_scale = 1e8;
  Warnings warnings;
  const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
  s.trainer(options).fit(s.loader());
  EXPECT_THAT(warnings.texts, Contains(HasSubstr("or for a gradient penalty")));
}

}  // namespace
}  // namespace demi::train
