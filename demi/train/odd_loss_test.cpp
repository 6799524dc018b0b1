// Losses and figures of shapes, dtypes and targets that were computed wrongly. Truth: the formula.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <vector>

#include "demi/train/small_testing.h"
#include "demi/train/trainer.h"

namespace demi::train {
namespace {

using ::testing::Each;
using testing::Fixed;
using ::testing::HasSubstr;
using testing::message_of;
using testing::Rows;
using testing::sgd;
using testing::Small;
namespace F = torch::nn::functional;

Evaluation figures(const at::Tensor& output, const at::Tensor& target, EvaluateOptions options,
                   int64_t batch = 2) {
  return evaluate(network(Fixed()), Rows(output, target, batch), options);
}

TEST(OddLoss, AFunctionGetsAtLeastFp32AsNamedLossesDo) {
  for (const char* precision : {"bf16", "fp16", "bf16-true"}) {
    Small named, own;
    std::vector<c10::ScalarType> seen;
    const LossFunction function = [&](const at::Tensor& output, const at::Tensor& target) {
      seen.push_back(output.scalar_type());
      return F::cross_entropy(output, target);
    };
    const TrainerOptions options{.precision = parse_precision(precision), .accumulate = 2};
    TrainerOptions with_own = options;
    with_own.loss = function;
    const Rows rows = named.loader();
    const History a = named.trainer(options).fit(rows, &rows);
    const History b = own.trainer(with_own).fit(rows, &rows);
    EXPECT_THAT(seen, Each(torch::kFloat)) << precision;
    EXPECT_EQ(a.steps.back().loss, b.steps.back().loss);
    EXPECT_EQ(a.epochs.back().validation->loss, b.epochs.back().validation->loss);
    EXPECT_TRUE(torch::equal(named.weight(), own.weight())) << precision;
    EXPECT_EQ(b.skipped_steps, 0) << precision;
  }
}

TEST(OddLoss, MetricsAreSummedInFp32) {
  const auto model = network(torch::nn::Linear(torch::nn::LinearOptions(1, 1).bias(false)));
  {
    const torch::NoGradGuard no_grad;
    model.module->parameters()[0].fill_(1);
  }
  const at::Tensor x = torch::full({8, 1}, 40'000.0);
  EvaluateOptions options{.precision = parse_precision("fp16")};
  options.loss = [](const at::Tensor& o, const at::Tensor&) { return o.sum(); };
  options.metrics = {
      {.name = "sum", .sum = [](const at::Tensor& o, const at::Tensor&) { return o.sum(); }}};
  const Evaluation result = evaluate(model, Rows(x, x, 8), options);
  EXPECT_EQ(result.loss, 320'000);
  EXPECT_EQ(result.metrics[0].second, 40'000);
}

// One in four answers right, in each shape of targets.
TEST(OddLoss, AccuracyIsAShareOfTheAnswers) {
  const auto one_hot = [](const at::Tensor& classes, int64_t count) {
    return torch::one_hot(classes, count).movedim(-1, 1).to(torch::kFloat).contiguous();
  };
  const at::Tensor line = torch::tensor({{0, 1, 2, 0}, {1, 1, 1, 2}, {2, 0, 0, 0}});
  const at::Tensor square = line.unsqueeze(1).repeat({1, 2, 1});
  for (const at::Tensor& target : {line, square}) {
    at::Tensor said = (target + 1) % 3;
    said.flatten(1).select(1, 0).copy_(target.flatten(1).select(1, 0));
    const double share = said.eq(target).to(torch::kDouble).mean().item<double>();
    ASSERT_GT(share, 0.1);
    const Evaluation result = figures(one_hot(said, 3), target, {.metrics = {top_k(1), top_k(3)}});
    EXPECT_NEAR(*result.accuracy, share, 1e-12);
    EXPECT_NEAR(result.metrics[0].second, share, 1e-12);
    EXPECT_NEAR(result.metrics[1].second, 1, 1e-12);
  }
  const at::Tensor labels = torch::tensor({{1.F, 0.F, 1.F, 0.F}, {0.F, 0.F, 1.F, 1.F}});
  const at::Tensor logits = torch::tensor({{1.F, 1.F, -1.F, 1.F}, {1.F, 1.F, -1.F, 2.F}});
  const Evaluation multi =
      figures(logits, labels, {.loss = Loss::bce_with_logits, .per_class = true});
  EXPECT_DOUBLE_EQ(*multi.accuracy, 0.25);
  ASSERT_EQ(multi.class_accuracy.size(), 2U) << "no and yes";
  EXPECT_DOUBLE_EQ(multi.class_accuracy[0], 0);
  EXPECT_DOUBLE_EQ(multi.class_accuracy[1], 0.5);
}

TEST(OddLoss, TrainingCountsAnswersAsEvaluationDoes) {
  torch::manual_seed(1);
  torch::nn::Conv1d model(torch::nn::Conv1dOptions(4, 3, 1));
  const at::Tensor x = torch::randn({6, 4, 5}), y = torch::randint(0, 3, {6, 5});
  const at::Tensor first = model(x.slice(0, 0, 3)).argmax(1).eq(y.slice(0, 0, 3));
  const History history = Trainer(network(model), sgd(*model), TrainerOptions()).fit(Rows(x, y, 3));
  EXPECT_NEAR(*history.steps[0].accuracy, first.to(torch::kDouble).mean().item<double>(), 1e-12);
  EXPECT_EQ(history.epochs[0].examples, 6);
  EXPECT_NEAR(*history.epochs[0].accuracy,
              (*history.steps[0].accuracy + *history.steps[1].accuracy) / 2, 1e-12);
}

TEST(OddLoss, SoftLabelsHaveAClassAndTheirCrossEntropy) {
  torch::manual_seed(4);
  for (const int64_t classes : {4, 5}) {  // as many as rows, and not
    const at::Tensor logits = torch::randn({4, classes});
    const at::Tensor soft = torch::randn({4, classes}).softmax(1);
    const Evaluation result = figures(logits, soft, {.metrics = {top_k(1)}, .per_class = true}, 4);
    const double share =
        logits.argmax(1).eq(soft.argmax(1)).to(torch::kDouble).mean().item<double>();
    EXPECT_DOUBLE_EQ(*result.accuracy, share);
    EXPECT_DOUBLE_EQ(result.metrics[0].second, share);
    EXPECT_NEAR(result.loss, -(soft * logits.log_softmax(1)).sum(1).mean().item<double>(), 1e-6);
  }
}

TEST(OddLoss, IgnoredTargetsCountNowhere) {
  torch::manual_seed(3);
  const at::Tensor logits = torch::randn({8, 3});
  const at::Tensor target = torch::tensor({0, -100, 2, 1, -100, -100, 1, 2});
  const at::Tensor kept = target.ne(-100);
  const at::Tensor each = F::cross_entropy(logits.index({kept}), target.index({kept}),
                                           F::CrossEntropyFuncOptions().reduction(torch::kNone));
  const at::Tensor right = logits.argmax(1).eq(target).index({kept});
  // Batches of 2: the third holds nothing but ignored ones.
  const Evaluation result = figures(logits, target, {.metrics = {top_k(1)}, .per_class = true});
  EXPECT_NEAR(result.loss, each.mean().item<double>(), 1e-6);
  EXPECT_NEAR(*result.accuracy, right.to(torch::kDouble).mean().item<double>(), 1e-12);
  EXPECT_NEAR(result.metrics[0].second, *result.accuracy, 1e-12);
  ASSERT_EQ(result.class_accuracy.size(), 3U);
  EXPECT_EQ(result.examples, 8);

  Small s;
  s.target = target;
  TrainerOptions options;
  options.optimizers = {sgd(*s.model, 0)};
  const History history = s.trainer(options).fit(s.loader(2));
  EXPECT_TRUE(std::isnan(history.steps[2].loss)) << "a mean of none";
  EXPECT_FALSE(history.steps[2].accuracy);
  EXPECT_FALSE(history.failed);
  const at::Tensor of_model =
      F::cross_entropy(s.model(s.input), target).detach();  // the mean over those that count
  EXPECT_NEAR(history.epochs[0].loss, of_model.item<double>(), 1e-6);

  Small ignored;
  ignored.target = torch::full({8}, -100);
  const History none = ignored.trainer({.epochs = 5}).fit(ignored.loader());
  EXPECT_FALSE(none.failed) << "nothing was learned, and nothing was wrong";
  EXPECT_TRUE(std::isnan(none.epochs[0].loss));
  EXPECT_FALSE(none.epochs[0].accuracy);
}

// -100 in uint8 would be 156, a class like any other. Truth: the formula, and int64.
TEST(OddLoss, ClassesOfUint8CountAll) {
  const at::Tensor classes = torch::tensor({156, 3, 156, 156, 156, 156, 7, 199});
  const at::Tensor bytes = classes.to(torch::kByte);
  at::Tensor logits = torch::zeros({8, 200});
  // All right but one of class 156, which is taken for class 9.
  for (int64_t i = 0; i < 8; ++i) logits[i][i == 2 ? 9 : classes[i].item<int64_t>()] = 5;
  const EvaluateOptions options{.metrics = {top_k(1)}, .per_class = true};
  const Evaluation result = figures(logits, bytes, options);
  EXPECT_NEAR(result.loss, torch::cross_entropy_loss(logits, classes).item<double>(), 1e-6);
  EXPECT_DOUBLE_EQ(*result.accuracy, 7.0 / 8);
  EXPECT_DOUBLE_EQ(result.metrics[0].second, 7.0 / 8);
  EXPECT_DOUBLE_EQ(result.class_accuracy[156], 4.0 / 5);

  const LossFunction loss(Loss::cross_entropy);
  EXPECT_EQ(loss.share_that_counts(bytes), 1) << "ranks weigh their gradients by it";
  EXPECT_EQ(loss.share_that_counts(bytes.slice(0, 4, 6)), 1) << "a rank's part of class 156 alone";
  EXPECT_EQ(loss.share_that_counts(torch::tensor({-100, 3}).to(torch::kChar)), 0.5);

  std::vector<History> trained;
  for (const at::Tensor& target : {classes, bytes}) {
    torch::manual_seed(7);
    torch::nn::Linear model(6, 200);
    trained.push_back(Trainer(network(model), sgd(*model), TrainerOptions())
                          .fit(Rows(torch::randn({8, 6}), target, 2)));
  }
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(trained[0].steps[i].loss, trained[1].steps[i].loss);
    EXPECT_EQ(trained[0].steps[i].accuracy, trained[1].steps[i].accuracy);
  }
  EXPECT_EQ(trained[0].epochs[0].loss, trained[1].epochs[0].loss);
  EXPECT_EQ(trained[0].epochs[0].accuracy, trained[1].epochs[0].accuracy);
}

TEST(OddLoss, ShapesAreNotBroadcast) {
  const at::Tensor output = torch::randn({16, 1}), target = torch::randn({16});
  const double of_pairs = (output.squeeze(1) - target).square().mean().item<double>();
  EXPECT_NEAR(loss_of(Loss::mse, output, target).item<double>(), of_pairs, 1e-6);
  EXPECT_NEAR(figures(output, target, {.loss = Loss::mse, .metrics = {mean_absolute_error()}})
                  .metrics[0]
                  .second,
              (output.squeeze(1) - target).abs().mean().item<double>(), 1e-6);
  for (const Loss loss : {Loss::mse, Loss::bce_with_logits})
    EXPECT_THAT(
        message_of([&] {
          loss_of(loss, torch::randn({16, 3}), target);
        }),
        AllOf(HasSubstr("differ in shape"), HasSubstr("output [16, 3]"), HasSubstr("target [16]")));
  EXPECT_THAT(message_of([&] {
                mean_absolute_error().sum(torch::randn({16, 3}), target);
              }),
              HasSubstr("differ in shape"));
}

TEST(OddLoss, CrossEntropyNeedsTwoClassesAndTargetsThatFit) {
  const at::Tensor numbers = torch::rand({8, 1}), classes = torch::zeros({8}, torch::kLong);
  for (const Loss loss : {Loss::cross_entropy, Loss::cross_entropy_probabilities}) {
    for (const at::Tensor& target : {numbers, classes})
      EXPECT_THAT(message_of([&] {
                    loss_of(loss, torch::randn({8, 1}), target);
                  }),
                  AllOf(HasSubstr("fewer than two classes"), HasSubstr("bce_with_logits")));
    EXPECT_THAT(message_of([&] {
                  loss_of(loss, torch::rand({8, 3}), numbers);
                }),
                HasSubstr("classes [8] of int64"));
    EXPECT_THAT(message_of([&] {
                  loss_of(loss, torch::rand({8, 3}), classes.unsqueeze(1));
                }),
                HasSubstr("does not fit"));
  }
  const at::Tensor logits = torch::randn({8, 3});
  EXPECT_TRUE(torch::equal(loss_of(Loss::cross_entropy, logits, classes),
                           loss_of(Loss::cross_entropy, logits, classes.to(torch::kInt))));
}

TEST(OddLoss, AbsoluteErrorIsComputedInFp32) {
  const auto error = [](const at::Tensor& output, const at::Tensor& target) {
    return mean_absolute_error().sum(output, target).item<double>();
  };
  EXPECT_NEAR(error(torch::tensor({{0.5F}, {2.75F}}), torch::tensor({{1}, {2}})), 1.25, 1e-6);
  const at::Tensor large = torch::full({4, 1}, 51'200.0, torch::kHalf);
  EXPECT_EQ(error(-large.to(torch::kFloat), large), 4 * 102'400.0);
  const at::Tensor ones = torch::ones({1000, 1}, torch::kBFloat16);
  EXPECT_EQ(error(torch::zeros({1000, 1}), ones), 1000);
}

TEST(OddLoss, LossesOfTheUserAreChecked) {
  Small s;
  const auto fitted = [&](std::function<std::vector<at::Tensor>(const at::Tensor&)> losses) {
    TrainerOptions options;
    options.losses = [losses](const Network& net, const data::Batch& batch) {
      return losses(net.forward(batch));
    };
    return message_of([&] { s.trainer(options).fit(s.loader()); });
  };
  using Losses = std::vector<at::Tensor>;
  EXPECT_THAT(fitted([](const at::Tensor&) { return Losses{}; }), HasSubstr("has no loss"));
  EXPECT_THAT(fitted([](const at::Tensor&) { return Losses{at::Tensor()}; }),
              HasSubstr("a loss is undefined"));
  EXPECT_THAT(fitted([](const at::Tensor& o) { return Losses{o.sum(1)}; }),
              HasSubstr("not one floating point number"));
  EXPECT_THAT(fitted([](const at::Tensor& o) { return Losses{o.detach().sum()}; }),
              HasSubstr("depends on nothing that is trained"));
  EXPECT_THAT(fitted([](const at::Tensor& o) { return Losses{o.sum().reshape({1})}; }),
              HasSubstr("nothing was thrown"));
}

}  // namespace
}  // namespace demi::train
