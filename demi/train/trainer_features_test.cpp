// Features of a trainer beside the plain loop, each compared with the loop that one would write by
// hand.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <cmath>

#include "demi/autocast/policy.h"
#include "demi/train/testing.h"
#include "demi/train/trainer.h"

namespace demi::train {
namespace {

using testing::Rows;

struct Classifier {
  torch::nn::Linear model{nullptr};
  std::shared_ptr<torch::optim::SGD> optimizer;
  at::Tensor input, target;

  Classifier() {
    torch::manual_seed(5);
    model = torch::nn::Linear(6, 3);
    input = torch::randn({8, 6});
    target = torch::arange(8) % 3;
    optimizer = std::make_shared<torch::optim::SGD>(model->parameters(), 0.1);
  }
  Rows loader(int64_t batch_size = 4) const { return {input, target, batch_size}; }
  Trainer trainer(TrainerOptions options) const {
    return {network(model), optimizer, std::move(options)};
  }
};

TEST(Trainer, MaxStepsEndsInTheMiddleOfAnEpoch) {
  Classifier s;
  const History history = s.trainer({.epochs = 10, .max_steps = 3}).fit(s.loader());
  EXPECT_EQ(history.steps.size(), 3u);
  EXPECT_EQ(history.epochs.size(), 2u);
  EXPECT_FALSE(history.stopped);
}

// A region whose products run in FP32 trains and validates as FP32 does; with several losses, too.
TEST(Trainer, ThePolicyOfOpsHoldsInTrainingAndValidation) {
  const auto trained = [](const char* precision, bool with_policy, bool own_losses) {
    Classifier s;
    TrainerOptions options{.epochs = 2, .precision = parse_precision(precision)};
    if (with_policy) options.op_policy = OpPolicy().set("addmm", OpCategory::fp32);
    if (own_losses)
      options.losses = [](const Network& network, const data::Batch& batch) {
        return std::vector{loss_of(Loss::cross_entropy, network.forward(batch), batch.target)};
      };
    Trainer trainer = s.trainer(std::move(options));
    const Rows rows = s.loader();
    const double loss = trainer.fit(rows, &rows).epochs.back().validation->loss;
    return std::pair(loss, s.model->weight.detach().clone());
  };
  for (const bool own_losses : {false, true}) {
    const auto [loss, weight] = trained("fp32", false, own_losses);
    const auto [same_loss, same_weight] = trained("bf16", true, own_losses);
    EXPECT_EQ(same_loss, loss);
    EXPECT_TRUE(at::equal(same_weight, weight));
    const auto [other_loss, other_weight] = trained("bf16", false, own_losses);
    EXPECT_NE(other_loss, loss);
    EXPECT_FALSE(at::equal(other_weight, weight));
  }
}

TEST(Trainer, GradientPenaltyIsTheNormOfTheGradient) {
  Classifier by_hand, s;
  const at::Tensor x = by_hand.input, y = by_hand.target;
  const auto parameters = by_hand.model->parameters();
  const at::Tensor loss = loss_of(Loss::cross_entropy, by_hand.model(x), y);
  const auto gradients = torch::autograd::grad({loss}, parameters, {}, true, true);
  (loss + 0.5 * (gradients[0].square().sum() + gradients[1].square().sum()).sqrt()).backward();
  by_hand.optimizer->step();

  s.trainer({.loss_scale = {LossScale::Kind::fixed, 1024}, .gradient_penalty = 0.5})
      .fit(s.loader(8));
  EXPECT_TRUE(torch::allclose(s.model->weight, by_hand.model->weight, 1e-5, 1e-7));
}

// Two models, two losses that share an output, two optimizers, one scaler: the pattern of PyTorch's
// AMP examples.
TEST(Trainer, SeveralLossesAndOptimizers) {
  const auto run = [](bool with_trainer) {
    torch::manual_seed(9);
    torch::nn::Linear a(6, 1), b(6, 1);
    const at::Tensor x = torch::randn({8, 6}), y = torch::randn({8, 1});
    auto sgd_a = std::make_shared<torch::optim::SGD>(a->parameters(), 0.1);
    auto sgd_b = std::make_shared<torch::optim::SGD>(b->parameters(), 0.2);
    auto losses = [=](const at::Tensor& in, const at::Tensor& out) mutable {
      const at::Tensor one = a(in), two = b(in);
      return std::vector<at::Tensor>{(2 * one + 3 * two - out).square().mean(),
                                     (3 * one - 5 * two - out).square().mean()};
    };
    if (with_trainer) {
      torch::nn::Sequential both(a, b);
      TrainerOptions options{.loss_scale = {LossScale::Kind::fixed, 256}};
      options.optimizers = {sgd_a, sgd_b};
      options.losses = [losses](const Network&, const data::Batch& batch) mutable {
        return losses(batch.input, batch.target);
      };
      const History history = Trainer(both, options).fit(Rows(x, y, 8));
      EXPECT_FALSE(history.epochs.front().accuracy);
    } else {
      const auto both = losses(x, y);
      both[0].backward({}, true);
      both[1].backward();
      sgd_a->step();
      sgd_b->step();
    }
    return torch::cat({a->weight.detach(), b->weight.detach()});
  };
  EXPECT_TRUE(torch::allclose(run(true), run(false), 1e-5, 1e-7));
}

TEST(Trainer, ValidationUsesTheAverageAndTrainingTheWeights) {
  Classifier s, plain;
  Rows loader = s.loader();
  Trainer trainer = s.trainer({.epochs = 2, .ema_decay = 0.5});
  const at::Tensor start = s.model->weight.detach().clone();
  const History history = trainer.fit(loader, &loader);
  plain.trainer({.epochs = 2}).fit(plain.loader());
  EXPECT_TRUE(torch::equal(s.model->weight, plain.model->weight)) << "training does not notice";
  const at::Tensor weights = s.model->weight.detach().clone();
  trainer.swap_average();
  EXPECT_FALSE(torch::equal(s.model->weight, weights));
  const at::Tensor logits = s.model(s.input);
  EXPECT_NEAR(history.epochs.back().validation->loss,
              loss_of(Loss::cross_entropy, logits, s.target).item<double>(), 1e-6);
  trainer.swap_average();
  EXPECT_TRUE(torch::equal(s.model->weight, weights));
}

TEST(Trainer, WeightsComeBackWhereValidationEndsInAnError) {
  Classifier s, plain;
  const Rows loader = s.loader();
  const testing::Broken broken(loader);
  EXPECT_THROW(s.trainer({.ema_decay = 0.5}).fit(loader, &broken), std::runtime_error);
  plain.trainer({}).fit(plain.loader());
  EXPECT_TRUE(torch::equal(s.model->weight, plain.model->weight)) << "not the averages";
}

TEST(Trainer, PartsInEvaluationModeStayInIt) {
  Classifier s;
  const Rows loader = s.loader();
  torch::nn::Sequential model(s.model, torch::nn::Dropout(0.9));
  model->ptr(1)->eval();
  Trainer(network(model), s.optimizer, {.epochs = 2}).fit(loader, &loader);
  EXPECT_TRUE(model->is_training());
  EXPECT_FALSE(model->ptr(1)->is_training());
  Classifier plain;
  plain.trainer({.epochs = 2}).fit(plain.loader());
  EXPECT_TRUE(torch::equal(s.model->weight, plain.model->weight)) << "nothing was dropped";

  model->eval();
  Trainer(network(model), s.optimizer, TrainerOptions()).fit(loader);
  EXPECT_TRUE(model->ptr(1)->is_training()) << "a model in evaluation mode is set to train";
}

TEST(Trainer, EarlyStoppingWaitsForABetterValidation) {
  Classifier s;
  Rows loader = s.loader();
  s.optimizer->param_groups()[0].options().set_lr(0);  // nothing ever gets better
  const History history = s.trainer({.epochs = 100, .early_stopping = 3}).fit(loader, &loader);
  EXPECT_EQ(history.epochs.size(), 4u) << "the first, and three without a better one";
  EXPECT_EQ(history.best_epoch, 1);
  EXPECT_TRUE(history.early_stopped);
}

TEST(Trainer, FitsTensorsWithALossAndMetricsOfTheUser) {
  torch::manual_seed(1);
  torch::nn::Linear model(4, 1);
  const at::Tensor x = torch::randn({64, 4}), y = x.sum(1, true);
  TrainerOptions options;
  options.loss = [](const at::Tensor& output, const at::Tensor& target) {
    return (output - target).abs().mean();
  };
  options.metrics = {mean_absolute_error()};
  options.optimizers = {std::make_shared<torch::optim::SGD>(model->parameters(), 0.05)};
  const History history =
      Trainer(model, options)
          .fit(x, y, {.epochs = 5, .batch_size = 8, .validation = {.x = x, .y = y}});
  ASSERT_EQ(history.epochs.size(), 5u);
  const Evaluation& last = *history.epochs.back().validation;
  EXPECT_LT(last.loss, history.epochs.front().validation->loss);
  ASSERT_EQ(last.metrics.size(), 1u);
  EXPECT_NEAR(last.metrics[0].second, last.loss, 1e-6) << "the metric is the same figure";
  EXPECT_FALSE(last.accuracy);
}

TEST(Trainer, ReadsTheGlobalPolicy) {
  const TrainerOptions made_before;
  set_global_policy("mixed_bfloat16");
  const Trainer mixed(torch::nn::Linear(1, 1), made_before);
  set_global_policy("float32");
  EXPECT_EQ(mixed.precision().name, "bf16") << "asked when the trainer is made";
  EXPECT_EQ(Trainer(torch::nn::Linear(1, 1)).precision().name, "fp32");
}

// Keras holds the softmax of a mixed policy in FP32.
TEST(Trainer, SoftmaxIsFp32UnderTheGlobalPolicy) {
  set_global_policy("mixed_bfloat16");
  torch::nn::Sequential model(torch::nn::Linear(4, 3), torch::nn::Softmax(1));
  class Outputs : public Callback {
   public:
    void after_forward(const StepView&, const at::Tensor& output) override {
      seen.push_back(output.scalar_type());
    }
    std::vector<c10::ScalarType> seen;
  };
  const auto outputs = std::make_shared<Outputs>();
  Trainer trainer(model, {.loss = Loss::cross_entropy_probabilities});
  trainer.add(outputs);
  trainer.fit(torch::randn({4, 4}), torch::arange(4) % 3, {.batch_size = 4});
  set_global_policy("float32");
  EXPECT_EQ(outputs->seen, std::vector{c10::kFloat});
}

TEST(Evaluate, CountsTopFiveAndEachClass) {
  torch::nn::Identity identity;
  // Logits of 3 examples over 6 classes; the target's rank is 1, 5 and 6.
  const at::Tensor logits = torch::tensor({{9.F, 0.F, 1.F, 2.F, 3.F, 4.F},
                                           {1.F, 5.F, 4.F, 3.F, 2.F, 0.F},
                                           {0.F, 1.F, 2.F, 3.F, 4.F, 5.F}});
  const at::Tensor target = torch::tensor({0, 0, 0});
  const Evaluation result = evaluate(network(identity), Rows(logits, target, 2),
                                     {.metrics = {top_k(5)}, .per_class = true});
  EXPECT_DOUBLE_EQ(result.metrics[0].second, 2.0 / 3);
  EXPECT_DOUBLE_EQ(*result.accuracy, 1.0 / 3);
  ASSERT_EQ(result.class_accuracy.size(), 6u);
  EXPECT_DOUBLE_EQ(result.class_accuracy[0], 1.0 / 3);
  EXPECT_TRUE(std::isnan(result.class_accuracy[1])) << "no example of it";
}

TEST(Loss, CrossEntropyOfProbabilitiesIsThatOfTheirLogits) {
  const at::Tensor logits = torch::randn({5, 3}), target = torch::tensor({0, 1, 2, 0, 1});
  EXPECT_TRUE(torch::allclose(loss_of(Loss::cross_entropy_probabilities, logits.softmax(1), target),
                              loss_of(Loss::cross_entropy, logits, target), 1e-5, 1e-6));
}

}  // namespace
}  // namespace demi::train
