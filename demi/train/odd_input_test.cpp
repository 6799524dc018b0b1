// Models, data and surroundings of kinds that trained wrongly, or ended in a message of LibTorch's.
// Truth: the loop or the formula that one would write by hand.
#include <ATen/autocast_mode.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <thread>

#include "demi/autocast/autocast.h"
#include "demi/autocast/to_precision.h"
#include "demi/core/error.h"
#include "demi/optim/sgd.h"
#include "demi/train/resume_testing.h"
#include "demi/train/step_view.h"
#include "demi/train/testing.h"
#include "demi/train/trainer.h"

namespace demi::train {
namespace {

using ::testing::HasSubstr;
using testing::Rows;
namespace F = torch::nn::functional;

std::shared_ptr<torch::optim::SGD> sgd(const torch::nn::Module& module, double rate = 0.1) {
  return std::make_shared<torch::optim::SGD>(module.parameters(), rate);
}

/// A linear layer, rows for it, and the plain loop over them.
struct Small {
  torch::nn::Linear model{nullptr};
  at::Tensor input, target;

  explicit Small(int64_t outputs = 3, int64_t rows = 8) {
    torch::manual_seed(5);
    model = torch::nn::Linear(6, outputs);
    input = torch::randn({rows, 6});
    target = torch::arange(rows) % outputs;
  }
  Trainer trainer(TrainerOptions options = {}) const {
    if (options.optimizers.empty()) options.optimizers = {sgd(*model)};
    return {network(model), std::move(options)};
  }
  Rows loader(int64_t batch = 4) const { return {input, target, batch}; }
  at::Tensor weight() const { return model->weight.detach().clone(); }
};

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("no UsageError: ") + error.what();
  }
  return "nothing was thrown";
}

/// Gives fixed outputs: evaluation of figures alone.
struct FixedImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) { return input; }
};
TORCH_MODULE(Fixed);

Evaluation figures(const at::Tensor& output, const at::Tensor& target, EvaluateOptions options,
                   int64_t batch = 2) {
  return evaluate(network(Fixed()), Rows(output, target, batch), options);
}

// --- models -----------------------------------------------------------------------------------

torch::nn::Sequential with_a_shared_layer() {
  torch::manual_seed(2);
  torch::nn::Linear layer(6, 6);
  return torch::nn::Sequential(layer, torch::nn::Tanh(), layer);
}

TEST(OddModel, ASharedLayerIsOneLayer) {
  const at::Tensor x = torch::randn({8, 6}), y = torch::arange(8) % 6;
  torch::nn::Sequential model = with_a_shared_layer(), by_hand = with_a_shared_layer();
  const std::vector<at::Tensor> once{by_hand->parameters()[0], by_hand->parameters()[1]};
  Trainer(model).fit(Rows(x, y, 8));  // the default optimizer
  torch::optim::Adam adam(once, torch::optim::AdamOptions(1e-3));
  F::cross_entropy(by_hand->forward(x), y).backward();
  adam.step();
  EXPECT_TRUE(torch::allclose(model->parameters()[0], once[0], 1e-5, 1e-7));
}

TEST(OddModel, AGradientPenaltyCountsASharedLayerOnceAndNoFrozenOne) {
  const at::Tensor x = torch::randn({8, 6}), y = torch::arange(8) % 6;
  for (const bool frozen : {false, true}) {
    torch::nn::Sequential model = with_a_shared_layer(), by_hand = with_a_shared_layer();
    std::vector<at::Tensor> once{by_hand->parameters()[0], by_hand->parameters()[1]};
    if (frozen) {
      model->parameters()[1].set_requires_grad(false);
      once[1].set_requires_grad(false);
      once.pop_back();
    }
    const at::Tensor loss = F::cross_entropy(by_hand->forward(x), y);
    at::Tensor squares = torch::zeros({});
    for (const at::Tensor& g : torch::autograd::grad({loss}, once, {}, true, true))
      squares = squares + g.square().sum();
    const at::Tensor all = loss + 0.5 * squares.sqrt();
    TrainerOptions options{.gradient_penalty = 0.5};
    options.optimizers = {
        std::make_shared<optim::SGD>(std::vector<at::Tensor>{model->parameters()[0]}, 0.1)};
    const History history = Trainer(model, options).fit(Rows(x, y, 8));
    EXPECT_NEAR(history.steps.front().loss, all.item<double>(), 1e-5) << frozen;
  }
}

struct IndicesImpl : torch::nn::Module {
  IndicesImpl() {
    table = register_parameter("table", torch::randn({5, 3}));
    order = register_buffer("order", torch::tensor({4, 3, 2, 1, 0}));
    norm = register_module("norm", torch::nn::BatchNorm1d(3));
  }
  at::Tensor forward(const at::Tensor& input) {
    return norm(torch::embedding(table, order.index_select(0, input)));
  }
  at::Tensor table, order;
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Indices);

TEST(OddModel, IntegersStayIntegersInATruePrecision) {
  for (const char* precision : {"bf16-true", "fp64"}) {
    Indices model;
    TrainerOptions options{.epochs = 300, .precision = parse_precision(precision)};
    options.loss = [](const at::Tensor& o, const at::Tensor&) { return o.square().mean(); };
    Trainer(model, options).fit(Rows(torch::arange(4), torch::arange(4), 4));
    EXPECT_EQ(model->order.scalar_type(), at::kLong);
    EXPECT_EQ(model->norm->num_batches_tracked.item<int64_t>(), 300) << precision;
    EXPECT_EQ(model->table.scalar_type(), parse_precision(precision).weights);
  }
}

TEST(OddModel, WeightsOfAnotherFormatAreRefused) {
  Small s;
  to_precision(*s.model, torch::kBFloat16);
  for (const char* precision : {"fp32", "bf16"})
    EXPECT_THAT(message_of([&] { s.trainer({.precision = parse_precision(precision)}); }),
                AllOf(HasSubstr("weight of bf16"), HasSubstr("accepted: fp32")));
  EXPECT_NO_THROW(s.trainer({.precision = parse_precision("bf16-true")}));
  Small frozen;
  for (at::Tensor& p : frozen.model->parameters()) p.set_requires_grad(false);
  to_precision(*frozen.model, torch::kHalf);
  torch::nn::Sequential both(frozen.model, torch::nn::Linear(3, 2));
  EXPECT_NO_THROW(Trainer(both, {.precision = parse_precision("bf16")})) << "not trained";
}

TEST(OddModel, ASequentialGetsNoLengths) {
  class WithLengths : public Rows {
   public:
    using Rows::Rows;
    data::Batch batch(int64_t epoch, int64_t position) const override {
      data::Batch one = Rows::batch(epoch, position);
      one.lengths = torch::ones({one.input.size(0)}, torch::kLong);
      return one;
    }
  };
  Small s, plain;
  torch::nn::Sequential model(s.model);
  Trainer(network(model), sgd(*model), {}).fit(WithLengths(s.input, s.target, 4));
  plain.trainer().fit(plain.loader());
  EXPECT_TRUE(torch::equal(s.weight(), plain.weight()));
}

TEST(OddModel, WhatIsMissingIsRefusedInWords) {
  Small s;
  const auto made = [&](Network net, std::shared_ptr<torch::optim::Optimizer> optimizer) {
    return message_of([&] { Trainer(std::move(net), std::move(optimizer), TrainerOptions()); });
  };
  EXPECT_THAT(made(network(s.model), nullptr), HasSubstr("an optimizer is null"));
  EXPECT_THAT(made({.module = nullptr, .forward = network(s.model).forward}, sgd(*s.model)),
              HasSubstr("no module"));
  EXPECT_THAT(made({.module = s.model.ptr(), .forward = {}}, sgd(*s.model)),
              HasSubstr("no forward function"));
  const auto empty = std::make_shared<torch::optim::SGD>(std::vector<at::Tensor>{}, 0.1);
  EXPECT_THAT(made(network(s.model), empty), HasSubstr("an optimizer has no parameters"));
  const auto groupless = std::make_shared<torch::optim::SGD>(
      std::vector<torch::optim::OptimizerParamGroup>{}, torch::optim::SGDOptions(0.1));
  EXPECT_THAT(made(network(s.model), groupless), HasSubstr("0 parameter groups"));
  EXPECT_THAT(message_of([] { Trainer{Fixed()}; }), HasSubstr("the model has no parameters"));
  EXPECT_THAT(message_of([&] { s.trainer().add(nullptr); }), HasSubstr("a callback is null"));
  EXPECT_THAT(message_of([&] { evaluate({}, s.loader(), {}); }), HasSubstr("no module"));
  const std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> none;
  EXPECT_THAT(message_of([&] { LossFunction{none}; }), HasSubstr("the function is empty"));
  EXPECT_THAT(message_of([&] { s.trainer({.metrics = {{.name = "m", .sum = {}}}}); }),
              HasSubstr("a metric has no function"));
}

TEST(OddModel, ADeviceThatIsNotHereIsADeviceError) {
  if (torch::cuda::is_available()) GTEST_SKIP() << "this machine has CUDA";
  Small s;
  try {
    s.trainer({.device = c10::Device(c10::kCUDA)});
    ADD_FAILURE() << "no exception";
  } catch (const DeviceError& error) {
    EXPECT_THAT(error.what(), HasSubstr("CUDA cannot be used"));
    EXPECT_THAT(error.what(), Not(HasSubstr("frame #")));
  }
  EXPECT_THROW(evaluate(network(s.model), s.loader(), {.device = c10::Device(c10::kCUDA)}),
               DeviceError);
}

TEST(OddModel, AModelOnAnotherDeviceIsRefused) {
  Fixed model;
  model->register_parameter("weight", torch::empty({2}, torch::kMeta));
  EXPECT_THAT(message_of([&] { Trainer{model}; }), HasSubstr("the model is not on the device"));
}

// --- losses and figures -----------------------------------------------------------------------

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

// --- data -------------------------------------------------------------------------------------

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

/// What LibTorch is warned of while it lives.
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

// --- time and surroundings --------------------------------------------------------------------

TEST(OddMoment, ASecondFitBeginsFromTheFirstRate) {
  const auto options = [](const Small& s) {
    TrainerOptions result{.epochs = 5};
    result.schedule = optim::lr::cosine(10);  // 10 steps: ends at 0
    result.optimizers = {sgd(*s.model)};
    return result;
  };
  Small s;
  const TrainerOptions told = options(s);
  Trainer trainer = s.trainer(told);
  trainer.fit(s.loader());
  EXPECT_NEAR(told.optimizers[0]->param_groups()[0].options().get_lr(), 0, 1e-12);
  EXPECT_EQ(trainer.fit(s.loader()).steps.front().learning_rate, 0.1);
  told.optimizers[0]->param_groups()[0].options().set_lr(0.5);  // the user's
  EXPECT_EQ(trainer.fit(s.loader()).steps.front().learning_rate, 0.5);
  EXPECT_EQ(trainer.fit(s.loader()).steps.front().learning_rate, 0.5);

  Small stopped, resumed;
  TrainerOptions first = options(stopped);
  first.should_stop = [left = 7]() mutable { return --left == 0; };
  Trainer before = stopped.trainer(first);
  const Rows rows = stopped.loader();
  Trainer::Parts parts(before, rows);
  parts.advance(100);
  Trainer after = resumed.trainer(options(resumed));
  after.resume(testing::copy_of(parts.checkpoint()));
  EXPECT_EQ(after.fit(rows).steps.size(), 10U);
  EXPECT_EQ(after.fit(rows).steps.front().learning_rate, 0.1);
}

TEST(OddMoment, AMomentumScheduleNeedsNoScheduleOfTheRate) {
  Small s, by_hand;
  const auto momentum = [](int64_t step) { return step == 0 ? 0.9 : 0.25; };
  const auto optimizer = [](const Small& of) {
    return std::make_shared<torch::optim::SGD>(of.model->parameters(),
                                               torch::optim::SGDOptions(0.1).momentum(0.9));
  };
  TrainerOptions options{.epochs = 2};
  options.optimizers = {optimizer(s)};
  options.momentum_schedule = [&](int64_t step, double) { return momentum(step); };
  s.trainer(options).fit(s.loader());
  const auto plain = optimizer(by_hand);
  for (int64_t step = 0; step < 4; ++step) {
    static_cast<torch::optim::SGDOptions&>(plain->param_groups()[0].options())
        .momentum(momentum(step));
    const int64_t start = step % 2 * 4;
    plain->zero_grad();
    F::cross_entropy(by_hand.model(s.input.slice(0, start, start + 4)),
                     s.target.slice(0, start, start + 4))
        .backward();
    plain->step();
  }
  EXPECT_TRUE(torch::allclose(s.weight(), by_hand.weight(), 1e-6, 1e-7));
}

TEST(OddMoment, AveragesBeginWithTheFirstFit) {
  Small s;
  Trainer trainer = s.trainer({.max_steps = 1, .ema_decay = 0.5});
  const torch::NoGradGuard no_grad;
  s.model->weight.fill_(2);  // as weights that are loaded
  trainer.fit(s.loader());
  const at::Tensor after = s.weight();
  trainer.swap_average();
  EXPECT_TRUE(torch::allclose(s.weight(), 0.5 * (after + 2), 1e-6, 1e-7));
  trainer.swap_average();
}

// The second optimizer skips its step, since its gradients are NaN.
TEST(OddMoment, AnAverageFollowsTheOptimizerOfItsParameter) {
  Small s, other;
  torch::nn::Sequential both(s.model, other.model);
  const at::Tensor start = s.weight();
  TrainerOptions options{.max_steps = 1, .ema_decay = 0.5};
  options.optimizers = {std::make_shared<optim::SGD>(s.model->parameters(), 0.1),
                        std::make_shared<optim::SGD>(other.model->parameters(), 0.1)};
  options.losses = [&](const Network&, const data::Batch& batch) {
    return std::vector<at::Tensor>{s.model(batch.input).square().mean(),
                                   other.model(batch.input).sum() * NAN};
  };
  Trainer trainer(network(both), options);
  trainer.fit(s.loader());
  const at::Tensor after = s.weight();
  EXPECT_FALSE(torch::equal(after, start));
  EXPECT_TRUE(torch::equal(other.weight(), start)) << "made by the same seed, and skipped";
  trainer.swap_average();
  EXPECT_TRUE(torch::allclose(s.weight(), 0.5 * (after + start), 1e-6, 1e-7));
  EXPECT_TRUE(torch::equal(other.weight(), start));
  trainer.swap_average();
  EXPECT_TRUE(torch::equal(s.weight(), after));
}

TEST(OddMoment, ASharedLayerHasOneAverageAndItsWeightsComeBack) {
  const at::Tensor x = torch::randn({8, 6}), y = torch::arange(8) % 6;
  const auto trained = [&](double decay) {
    torch::nn::Sequential model = with_a_shared_layer();
    const Rows rows(x, y, 4);
    Trainer(model, {.epochs = 2, .ema_decay = decay}).fit(rows, &rows);
    return model->parameters()[0].detach().clone();
  };
  EXPECT_TRUE(torch::equal(trained(0.9), trained(0)));
}

TEST(OddMoment, AveragesInTheWeightsPlacesAreNotTrained) {
  Small s;
  Trainer trainer = s.trainer({.ema_decay = 0.5});
  const Rows rows = s.loader();
  trainer.swap_average();
  EXPECT_THAT(message_of([&] { trainer.fit(rows); }),
              HasSubstr("the averages are in the weights'"));
  trainer.swap_average();
  EXPECT_NO_THROW(trainer.fit(rows));
}

TEST(OddMoment, AFitDoesNotFeelWhereItIsCalled) {
  const auto trained = [](const char* precision,
                          const std::function<void(std::function<void()>)>& in) {
    Small s;
    const Rows rows = s.loader();
    double validation = 0;
    in([&] {
      validation = s.trainer({.epochs = 2, .precision = parse_precision(precision)})
                       .fit(rows, &rows)
                       .epochs.back()
                       .validation->loss;
    });
    return std::pair(s.weight(), validation);
  };
  const auto plainly = [](const std::function<void()>& fit) { fit(); };
  const std::vector<std::function<void(std::function<void()>)>> surroundings{
      [](const std::function<void()>& fit) {
        const Autocast region(torch::kCPU, torch::kBFloat16);
        fit();
      },
      [](const std::function<void()>& fit) {
        const torch::NoGradGuard no_grad;
        fit();
      },
      [](const std::function<void()>& fit) {
        const c10::InferenceMode inference;
        fit();
      },
      [](const std::function<void()>& fit) {
        const auto before = torch::get_default_dtype();
        torch::set_default_dtype(torch::scalarTypeToTypeMeta(torch::kDouble));
        fit();
        torch::set_default_dtype(before);
      },
      [](const std::function<void()>& fit) { std::thread(fit).join(); }};
  for (const char* precision : {"fp32", "fp16", "bf16"}) {
    const auto [weight, validation] = trained(precision, plainly);
    for (std::size_t i = 0; i < surroundings.size(); ++i) {
      const auto [other, other_validation] = trained(precision, surroundings[i]);
      EXPECT_TRUE(torch::equal(weight, other)) << precision << " in surroundings " << i;
      EXPECT_EQ(validation, other_validation) << precision << " in surroundings " << i;
    }
  }
  const Autocast region(torch::kCPU, torch::kBFloat16);
  trained("fp32", plainly);
  EXPECT_TRUE(at::autocast::is_autocast_enabled(torch::kCPU)) << "the region is open again";
}

class ThrowsAfterUpdate : public Callback {
 public:
  explicit ThrowsAfterUpdate(int64_t step) : step_(step) {}
  void after_update(const StepView& view) override {
    if (view.step == step_) throw std::runtime_error("callback");
  }

 private:
  int64_t step_;
};

TEST(OddMoment, AStepThatWasTakenIsInTheHistory) {
  Small s, two;
  TrainerOptions options{.epochs = 2};
  options.schedule = [](int64_t step, double base) {
    if (step == 2) throw std::runtime_error("schedule");
    return base;
  };
  Trainer by_schedule = s.trainer(options);
  EXPECT_THROW(by_schedule.fit(s.loader()), std::runtime_error);
  EXPECT_EQ(by_schedule.history().steps.size(), 2U);
  two.trainer({.max_steps = 2}).fit(two.loader());
  EXPECT_TRUE(torch::equal(s.weight(), two.weight()));

  // What comes after the exception does not take the step once more.
  Small stopped, whole;
  Trainer trainer = stopped.trainer({.epochs = 2});
  trainer.add(std::make_shared<ThrowsAfterUpdate>(1));
  const Rows rows = stopped.loader();
  Trainer::Parts parts(trainer, rows);
  EXPECT_THROW(parts.advance(100), std::runtime_error);
  EXPECT_EQ(parts.history().steps.size(), 1U);
  while (parts.advance(100)) {
  }
  EXPECT_EQ(parts.history().steps.size(), 4U);
  whole.trainer({.epochs = 2}).fit(rows);
  EXPECT_TRUE(torch::equal(stopped.weight(), whole.weight()));
}

TEST(OddMoment, ACallbackMayAddOthers) {
  class Counts : public Callback {
   public:
    void on_step(const StepMetrics&, int64_t) override { ++steps; }
    int64_t steps = 0;
  };
  class Adds : public Callback {
   public:
    Adds(Trainer& trainer, std::shared_ptr<Counts> counts) : trainer_(trainer), counts_(counts) {}
    void before_forward(const StepView&) override { trainer_.add(counts_); }

   private:
    Trainer& trainer_;
    std::shared_ptr<Counts> counts_;
  };
  Small s;
  Trainer trainer = s.trainer({.read_every = 1});
  const auto counts = std::make_shared<Counts>();
  trainer.add(std::make_shared<Adds>(trainer, counts));
  trainer.fit(s.loader(1));
  EXPECT_EQ(counts->steps, 1 + 2 + 3 + 4 + 5 + 6 + 7 + 8);
}

TEST(OddMoment, APenaltyDoesNotJudgeTheRunWhileTheScaleIsFound) {
  Small s, without;
  s.input.mul_(40);
  without.input.mul_(40);
  TrainerOptions options{.epochs = 12, .precision = parse_precision("fp16")};
  options.scaler.init_scale = 1e8;
  EXPECT_FALSE(without.trainer(options).fit(without.loader()).failed);
  options.gradient_penalty = 0.01;
  const History history = s.trainer(options).fit(s.loader());
  EXPECT_FALSE(history.failed) << *history.failed;
  EXPECT_GT(history.skipped_steps, 3);
  std::string scales;
  for (const StepMetrics& step : history.steps)
    scales += c10::str(*step.loss_scale, step.skipped ? " skipped, " : ", ");
  EXPECT_FALSE(history.steps.back().skipped) << scales;
}

// Gradients that are NaN for ever, under a sound loss.
TEST(OddMoment, StepsThatAreSkippedAtTheFloorOfTheScaleEndTheRun) {
  const auto run = [](LossScale scale, double floor) {
    Small s;
    TrainerOptions options{.epochs = 200, .precision = parse_precision("fp16")};
    options.loss_scale = scale;
    options.scaler.min_scale = floor;
    options.scaler.warn_after_skips = 0;
    options.loss = [](const at::Tensor& output, const at::Tensor&) {
      const at::Tensor zero = (output - output.detach()).abs().sum();
      return (zero * zero).sqrt() + 1;  // the derivative of a root at 0
    };
    return s.trainer(options).fit(s.loader());
  };
  const History dynamic = run({LossScale::Kind::dynamic, 0}, 0);
  ASSERT_TRUE(dynamic.failed);
  EXPECT_THAT(*dynamic.failed, HasSubstr("the gradients hold"));
  EXPECT_GT(dynamic.steps.size(), 140U) << "from 2^16 to 2^-126 the scale is being found";
  const History floored = run({LossScale::Kind::dynamic, 0}, 1024);
  ASSERT_TRUE(floored.failed);
  EXPECT_EQ(floored.steps.size(), 6U + 50U);
  const History fixed = run({LossScale::Kind::fixed, 128}, 0);
  ASSERT_TRUE(fixed.failed);
  EXPECT_EQ(fixed.steps.size(), 50U);
}

TEST(OddMoment, ValidationsThatAreNaNAreNeverTheBest) {
  Small s;
  Small broken;
  broken.input.fill_(NAN);
  const Rows validation = broken.loader();
  const History history = s.trainer({.epochs = 10, .early_stopping = 3, .give_up_after = 0})
                              .fit(s.loader(), &validation);
  EXPECT_FALSE(history.best_epoch);
  EXPECT_TRUE(history.early_stopped);
  EXPECT_EQ(history.epochs.size(), 3U);
}

struct BagImpl : torch::nn::Module {
  BagImpl()
      : words(register_module(
            "words", torch::nn::Embedding(torch::nn::EmbeddingOptions(9, 3).sparse(true)))) {}
  at::Tensor forward(const at::Tensor& input) { return words(input).sum(1); }
  torch::nn::Embedding words;
};
TORCH_MODULE(Bag);

TEST(OddMoment, SparseGradientsOfAnOpenWindowAreSaved) {
  const at::Tensor x = torch::arange(48).reshape({12, 4}) % 9, y = torch::arange(12) % 3;
  const auto job = [&] {
    torch::manual_seed(8);
    Bag model;
    testing::Job one{.network = network(model)};
    one.options = {.epochs = 2, .accumulate = 3};
    one.options.optimizers = {sgd(*model)};
    one.training = std::make_shared<Rows>(x, y, 2);
    return one;
  };
  const testing::Outcome whole = testing::train(job());
  for (const int64_t k : {1, 2, 4, 8}) {
    const testing::Outcome stopped = testing::stopped_after(job(), k);
    EXPECT_EQ(stopped.state.state.contains("gradient.values/words.weight"), k % 3 != 0);
    testing::expect_same(testing::train(job(), &stopped.state).state, whole.state);
  }
}

TEST(OddMoment, AResumeKeepsMetricsByName) {
  Small s;
  const auto metric = [](const char* name, double value) {
    return Metric{.name = name, .sum = [value](const at::Tensor& output, const at::Tensor&) {
                    return torch::full({}, value) * output.size(0);
                  }};
  };
  const Metric a = metric("a", 1), b = metric("b", 2);
  const Rows rows = s.loader();
  checkpoint::Checkpoint saved;
  const auto go_on = [&](int64_t epochs, std::vector<Metric> metrics) {
    Trainer trainer = s.trainer({.epochs = epochs, .metrics = std::move(metrics)});
    if (!saved.model.empty()) trainer.resume(saved);
    Trainer::Parts parts(trainer, rows, &rows);
    while (parts.advance(100)) {
    }
    saved = testing::copy_of(parts.checkpoint());
    return parts.history();
  };
  go_on(1, {a});
  go_on(2, {b, a});
  const History history = go_on(3, {b});
  const auto figures_of = [&](std::size_t epoch) {
    const auto& metrics = history.epochs.at(epoch).validation->metrics;
    return std::map<std::string, double>(metrics.begin(), metrics.end());
  };
  using Figures = std::map<std::string, double>;
  EXPECT_EQ(figures_of(0), (Figures{{"a", 1}}));
  EXPECT_EQ(figures_of(1), (Figures{{"a", 1}, {"b", 2}}));
  EXPECT_EQ(figures_of(2), (Figures{{"b", 2}}));
  EXPECT_THAT(message_of([&] { s.trainer({.metrics = {a, a}}); }), HasSubstr("one name"));
}

}  // namespace
}  // namespace demi::train
