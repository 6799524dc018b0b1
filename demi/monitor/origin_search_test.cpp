#include "demi/monitor/origin_search.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <fstream>
#include <functional>
#include <limits>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "demi/core/source_dir_testing.h"
#include "demi/loop/observer.h"
#include "demi/nn/batch_norm.h"
#include "demi/nn/norm.h"
#include "demi/optim/adam.h"
#include "demi/optim/sgd.h"
#include "demi/step/param_state.h"
#include "demi/train/testing.h"
#include "demi/train/trainer.h"

namespace demi::monitor {
namespace {

using ::testing::HasSubstr;
using train::testing::Rows;
using Place = Origin::Place;

using at::Tensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kDepth = 50, kWidth = 8;

// 50 linear layers, a normalization after every tenth. `plant` changes what comes out of a layer.
struct DeepImpl : torch::nn::Module {
  torch::nn::ModuleList blocks, norms;
  torch::nn::BatchNorm1d batch_norm{nullptr};
  torch::nn::Linear head{nullptr};
  std::function<at::Tensor(int64_t layer, const at::Tensor&)> plant;
  bool drops = false;

  DeepImpl() {
    torch::manual_seed(3);
    for (int64_t i = 0; i < kDepth; ++i) {
      blocks->push_back(torch::nn::Linear(kWidth, kWidth));
      norms->push_back(torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    }
    register_module("blocks", blocks);
    register_module("norms", norms);
    batch_norm = register_module("batch_norm", torch::nn::BatchNorm1d(kWidth));
    head = register_module("head", torch::nn::Linear(kWidth, 3));
  }
  at::Tensor forward(at::Tensor x) {
    for (int64_t i = 0; i < kDepth; ++i) {
      x = x + 0.1 * blocks[i]->as<torch::nn::Linear>()->forward(x);
      if (plant) x = plant(i, x);
      if (i % 10 == 9) x = norms[i]->as<torch::nn::LayerNorm>()->forward(x);
      if (drops && i == 4) x = at::dropout(x, 0.5, true);
    }
    return head->forward(batch_norm->forward(x));
  }
  torch::nn::Linear linear(int64_t i) {
    return torch::nn::Linear(std::dynamic_pointer_cast<torch::nn::LinearImpl>(blocks[i]));
  }
};
TORCH_MODULE(Deep);

struct AfterStep : loop::StepObserver {
  std::int64_t step;
  std::function<void()> what;
  AfterStep(std::int64_t at, std::function<void()> run) : step(at), what(std::move(run)) {}
  void after_update(const loop::StepView& view) override {
    if (view.step == step) what();
  }
};

struct Job {
  Deep model;
  train::TrainerOptions options;
  at::Tensor input, target = at::arange(12) % 3;
  std::function<std::shared_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)> make_optimizer =
      [](std::vector<at::Tensor> of) {
        return std::make_shared<optim::Adam>(std::move(of), optim::AdamOptions(1e-4));
      };
  std::function<void(torch::optim::Optimizer&)> before_fit, between_steps;

  Job() {
    torch::manual_seed(4);
    input = at::randn({12, kWidth});
    options.max_steps = 1;
  }
  std::vector<Origin> origins() {
    const auto optimizer = make_optimizer(model->parameters());
    options.optimizers = {optimizer};
    if (before_fit) before_fit(*optimizer);
    train::Trainer trainer(train::network(model), options);
    std::vector<Origin> reported;
    trainer.add(std::make_shared<OriginSearch>([&](const Origin& o) { reported.push_back(o); }));
    trainer.add(std::make_shared<AfterStep>(2, [&] {
      if (between_steps) between_steps(*optimizer);
    }));
    trainer.fit(Rows(input, target, 6));
    return reported;
  }
  // Spoils a state after the second of four steps.
  void spoil(std::function<void(torch::optim::Optimizer&)> how) {
    between_steps = std::move(how);
    options.max_steps = 4;
    options.epochs = 2;
  }
  // Plants a change of one layer's output.
  void plant(int64_t layer, std::function<at::Tensor(const at::Tensor&)> fault) {
    model->plant = [layer, fault = std::move(fault)](int64_t i, const at::Tensor& x) {
      return i == layer ? fault(x) : x;
    };
  }
  void precision(const char* name) { options.precision = parse_precision(name); }
};

struct Named {
  Place place;
  std::string name, op, inner;
};

// docs/reference/monitor.md shows what is said of the product that overflows.
std::string text_in_page() {
  std::ifstream page(source_dir() / "docs/reference/monitor.md");
  std::string text;
  bool inside = false;
  for (std::string line; std::getline(page, line);) {
    if (line == "<!-- end of origin -->") inside = false;
    if (inside) text += (text.empty() ? "" : " ") + line.substr(4);
    if (line == "<!-- origin -->") inside = true;
  }
  return text;
}

void expect_named(Job& job, const Named& wanted) {
  const auto reported = job.origins();
  ASSERT_EQ(reported.size(), 1u);
  const Origin& seen = reported.front();
  EXPECT_EQ(static_cast<int>(seen.place), static_cast<int>(wanted.place)) << to_string(seen);
  EXPECT_EQ(seen.name, wanted.name) << to_string(seen);
  EXPECT_EQ(seen.op, wanted.op) << to_string(seen);
  EXPECT_EQ(seen.inner, wanted.inner) << to_string(seen);
}

// Forward.

TEST(OriginSearch, ADivisionByZero) {
  Job job;
  job.plant(7, [](const at::Tensor& x) { return x / at::zeros_like(x); });
  expect_named(job, {Place::forward, "blocks.7", "aten::div", ""});
}

TEST(OriginSearch, TheLogarithmOfANegativeNumber) {
  Job job;
  job.plant(0, [](const at::Tensor& x) { return at::log(-x.abs() - 1); });
  expect_named(job, {Place::forward, "blocks.0", "aten::log", ""});
}

TEST(OriginSearch, TheRootOfANegativeNumber) {
  Job job;
  job.plant(49, [](const at::Tensor& x) { return (-x.abs()).sqrt(); });
  expect_named(job, {Place::forward, "blocks.49", "aten::sqrt", ""});
}

TEST(OriginSearch, AnExponentialThatOverflowsIn32Bits) {
  Job job;
  job.plant(23, [](const at::Tensor& x) { return (x * 0 + 100).exp(); });
  expect_named(job, {Place::forward, "blocks.23", "aten::exp", ""});
}

TEST(OriginSearch, AnOverflowInPlace) {
  Job job;
  job.plant(36, [](const at::Tensor& x) { return x.clone().mul_(1e30).mul_(1e30); });
  expect_named(job, {Place::forward, "blocks.36", "aten::mul_", "aten::mul"});
}

// 8 × 100 × 100 = 80,000 > 65,504.
TEST(OriginSearch, AProductThatOverflowsIn16Bits) {
  Job job;
  job.precision("fp16");
  job.plant(11, [](const at::Tensor& x) { return at::full_like(x, 100); });
  {
    const at::NoGradGuard no_grad;
    job.model->linear(12)->weight.fill_(100);
    job.model->linear(12)->bias.zero_();
  }
  const auto reported = job.origins();
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_EQ(reported[0].name, "blocks.12");
  EXPECT_EQ(reported[0].op, "aten::addmm");
  EXPECT_TRUE(reported[0].reads_weights);
  ASSERT_EQ(reported[0].trials.size(), 3u);
  for (const Origin::Trial& trial : reported[0].trials)
    EXPECT_EQ(trial.loss_is_finite, !trial.autocast) << trial.scaler;
  // Where products of fp16 are computed in FP32, the innermost op has FP32 inputs.
  EXPECT_EQ(std::regex_replace(to_string(reported[0]), std::regex("fp32 \\("), "fp16 ("),
            text_in_page());
}

TEST(OriginSearch, ACastThatOverflowsIn16Bits) {
  Job job;
  job.precision("fp16");
  job.plant(30, [](const at::Tensor& x) { return x.to(c10::kFloat) * 0 + 1e5; });
  expect_named(job, {Place::forward, "blocks.31", "aten::addmm", "aten::_to_copy"});
}

// Backward.

TEST(OriginSearch, TheGradientOfARootAtZero) {
  Job job;
  job.plant(33, [](const at::Tensor& x) { return x + (x * 0).sqrt(); });
  expect_named(job, {Place::backward, "blocks.33", "aten::div", "SqrtBackward0"});
}

TEST(OriginSearch, TheGradientOfAPowerAtZero) {
  Job job;
  job.plant(41, [](const at::Tensor& x) { return x + (x * 0).pow(0.5); });
  const auto reported = job.origins();
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_EQ(reported[0].place, Place::backward);
  EXPECT_EQ(reported[0].inner, "PowBackward0");
  EXPECT_EQ(reported[0].name, "blocks.41");
}

struct Planted : torch::autograd::Function<Planted> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x.clone();
  }
  static std::vector<at::Tensor> backward(torch::autograd::AutogradContext*,
                                          std::vector<at::Tensor> gradients) {
    return {gradients[0] * kInfinity};
  }
};

TEST(OriginSearch, AFunctionOfTheUsers) {
  Job job;
  job.plant(5, [](const at::Tensor& x) { return Planted::apply(x); });
  const auto reported = job.origins();
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_EQ(reported[0].place, Place::backward);
  EXPECT_EQ(reported[0].op, "aten::mul");
  EXPECT_EQ(reported[0].name, "blocks.5") << "in which layer of forward the function was called";
  EXPECT_THAT(reported[0].inner, HasSubstr("Planted"));
}

TEST(OriginSearch, ATensorsHook) {
  Job job;
  job.plant(20, [](const at::Tensor& x) {
    x.register_hook([](const at::Tensor& gradient) { return gradient * std::nan(""); });
    return x;
  });
  const auto reported = job.origins();
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_EQ(reported[0].place, Place::backward);
  EXPECT_EQ(reported[0].op, "aten::mul");
  EXPECT_EQ(reported[0].inner, "");
  EXPECT_EQ(reported[0].name, "blocks.20") << "whose output has the hook";
  EXPECT_THAT(to_string(reported[0]), HasSubstr("a tensor's hook"));
}

// 2^15 × a loss whose gradient is beyond 2 overflows fp16 on its way back.
TEST(OriginSearch, AnOverflowByTheLossScaleAlone) {
  Job job;
  job.precision("fp16");
  job.options.loss_scale = {LossScale::Kind::fixed, 0x1p40};
  const auto reported = job.origins();
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_TRUE(reported[0].is_loss_scale()) << to_string(reported[0]);
  EXPECT_EQ(reported[0].place, Place::backward);
}

// The loss.

TEST(OriginSearch, TheLogarithmOfZeroInTheLoss) {
  Job job;
  job.options.loss = train::LossFunction([](const at::Tensor& output, const at::Tensor&) {
    return -(output.softmax(1) * 0).log().mean();
  });
  expect_named(job, {Place::forward, "head", "aten::log", ""});
}

TEST(OriginSearch, TheMeanOfNothingInTheLoss) {
  Job job;
  job.options.loss = train::LossFunction([](const at::Tensor& output, const at::Tensor&) {
    return output.sum() * 0 + output.slice(0, 0, 0).mean();
  });
  expect_named(job, {Place::forward, "head", "aten::mean", "aten::div_"});
}

// The scaled loss is Inf, which no gradient notices.
TEST(OriginSearch, AScaledLossThatOverflowsIsNoFault) {
  Job job;
  job.options.loss_scale = {LossScale::Kind::fixed, 0x1p100};
  job.options.loss = train::LossFunction(
      [](const at::Tensor& output, const at::Tensor&) { return output.sum() * 1e-9 + 1e10; });
  EXPECT_TRUE(job.origins().empty());
}

TEST(OriginSearch, AProductOfTwoLargeNumbersInTheLoss) {
  Job job;
  job.options.loss = train::LossFunction([](const at::Tensor& output, const at::Tensor&) {
    return (output * 0 + 1e25).square().mean();
  });
  expect_named(job, {Place::forward, "head", "aten::square", "aten::pow"});
}

// Normalization.

TEST(OriginSearch, ALayerNormWithoutVariance) {
  Job job;
  const auto norm = std::dynamic_pointer_cast<torch::nn::LayerNormImpl>(job.model->norms[19]);
  norm->options.eps(0);
  job.plant(19, [](const at::Tensor& x) { return x * 0 + 1; });
  expect_named(job, {Place::forward, "norms.19", "aten::layer_norm", "aten::native_layer_norm"});
}

TEST(OriginSearch, ABatchNormOfNegativeVariance) {
  Job job;
  job.model->batch_norm->options.eps(-100);
  const auto reported = job.origins();
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_EQ(reported[0].place, Place::forward);
  EXPECT_EQ(reported[0].name, "batch_norm");
  EXPECT_EQ(reported[0].op, "aten::batch_norm");
}

// Normalisation and ReLU are one operator.
TEST(OriginSearch, ABatchNormWithReLU) {
  Job job;
  nn::BatchNorm2d norm(nn::BatchNorm2dOptions(kWidth).relu(true));
  job.model->register_module("with_relu", norm);
  norm->options.eps(-100);
  job.plant(30, [&](const at::Tensor& x) {
    return norm->forward(x.unsqueeze(-1).unsqueeze(-1)).squeeze(-1).squeeze(-1);
  });
  expect_named(job, {Place::forward, "with_relu", "demi::batch_norm_relu", ""});
}

// The sum before it and the norm are one operator.
TEST(OriginSearch, ANormWithTheSumBefore) {
  Job job;
  nn::Norm norm(nn::NormOptions{.width = kWidth, .eps = 0});
  job.model->register_module("with_sum", norm);
  job.plant(30, [&](const at::Tensor& x) { return norm->forward_add(x * 0, x * 0 + 1).norm; });
  expect_named(job, {Place::forward, "with_sum", "demi::add_layer_norm", ""});
}

TEST(OriginSearch, ANormalizationByHand) {
  Job job;
  job.plant(14, [](const at::Tensor& x) {
    const at::Tensor same = x * 0 + 1;
    return (same - same.mean()) / same.std();
  });
  expect_named(job, {Place::forward, "blocks.14", "aten::div", ""});
}

// What a step writes to an optimizer's state and to buffers.

// The square of a gradient of 1e25 is beyond FP32, and makes every update from then on 0.
TEST(OriginSearch, AStepThatOverflowsASecondMoment) {
  Job job;
  job.options.loss = train::LossFunction(
      [](const at::Tensor& output, const at::Tensor&) { return output.sum() * 1e25; });
  const auto reported = job.origins();
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_EQ(reported[0].place, Place::update);
  EXPECT_EQ(reported[0].step, 1);
  EXPECT_THAT(to_string(reported[0]), HasSubstr("the optimizers' step wrote it: "));
  EXPECT_THAT(to_string(reported[0]), HasSubstr("the exp_avg_sq of head.bias: 3 Inf"));
  EXPECT_THAT(to_string(reported[0]), HasSubstr("clipped gradients"));
}

// In training nothing reads it: the loss is finite until the model is evaluated. It is written by
// the first batch of a window, and there before the second.
TEST(OriginSearch, ARunningVarianceThatForwardSpoils) {
  Job job;
  job.options.accumulate = 2;
  {
    const at::NoGradGuard no_grad;
    job.model->norms[49]->as<torch::nn::LayerNorm>()->weight.fill_(1e25);
  }
  const auto reported = job.origins();
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_EQ(reported[0].place, Place::buffer) << to_string(reported[0]);
  EXPECT_EQ(reported[0].name, "batch_norm.running_var");
  EXPECT_THAT(to_string(reported[0]), HasSubstr("forward wrote it: the buffer"));
}

// What was there before the step: the weight that it spoils is not reported as well.

void expect_before(const std::vector<Origin>& reported, const std::string& name,
                   const std::string& counted, std::int64_t step) {
  ASSERT_EQ(reported.size(), 1u);
  const Origin& seen = reported.front();
  EXPECT_EQ(seen.place, Place::state) << to_string(seen);
  EXPECT_EQ(seen.name, name);
  EXPECT_EQ(seen.step, step);
  EXPECT_THAT(to_string(seen),
              HasSubstr("it was there before the step: the " + name + ": " + counted));
  EXPECT_THAT(to_string(seen), ::testing::Not(HasSubstr("learning rate")));
}

optim::ParamState& state_of(torch::optim::Optimizer& optimizer, const at::Tensor& p) {
  return static_cast<optim::ParamState&>(*optimizer.state().at(p.unsafeGetTensorImpl()));
}

TEST(OriginSearch, AMomentThatIsSpoiledBetweenTwoSteps) {
  for (const char* moment : {"exp_avg", "exp_avg_sq"}) {
    for (const double value : {std::nan(""), kInfinity}) {
      Job job;
      const at::Tensor weight = job.model->linear(17)->weight;
      job.spoil(
          [&](torch::optim::Optimizer& o) { state_of(o, weight)[moment].view(-1)[0] = value; });
      expect_before(job.origins(), std::string(moment) + " of blocks.17.weight",
                    std::isnan(value) ? "1 NaN" : "1 Inf", 3);
    }
  }
}

TEST(OriginSearch, AMomentOfAnyOptimizerThatIsSpoiledBetweenTwoSteps) {
  using Make = std::function<std::shared_ptr<torch::optim::Optimizer>(std::vector<Tensor>)>;
  using Spoil = std::function<void(torch::optim::Optimizer&, const Tensor&)>;
  struct Case {
    std::string moment;
    Make make;
    Spoil spoil;
  };
  const auto lean = [](optim::Moments moments) -> Make {
    return [=](std::vector<Tensor> of) {
      return std::make_shared<optim::Adam>(std::move(of), optim::AdamOptions(1e-4),
                                           optim::StepOptions{.moments = moments});
    };
  };
  const auto of_ours = [](const char* tensor) -> Spoil {
    return [=](torch::optim::Optimizer& o, const Tensor& p) {
      state_of(o, p)[tensor].view(-1)[0] = std::nan("");
    };
  };
  const Case cases[] = {
      {"momentum_buffer",
       [](std::vector<Tensor> of) {
         return std::make_shared<optim::SGD>(std::move(of), optim::SGDOptions(1e-4).momentum(0.9));
       },
       of_ours("momentum_buffer")},
      {"exp_avg", lean(optim::Moments::bf16), of_ours("exp_avg")},
      {"exp_avg_sq", lean(optim::Moments::int8), of_ours("exp_avg_sq_scale")},
      {"exp_avg",
       [](std::vector<Tensor> of) {
         return std::make_shared<torch::optim::Adam>(std::move(of),
                                                     torch::optim::AdamOptions(1e-4));
       },
       [](torch::optim::Optimizer& o, const Tensor& p) {
         auto& state = *o.state().at(p.unsafeGetTensorImpl());
         static_cast<torch::optim::AdamParamState&>(state).exp_avg().view(-1)[0] = std::nan("");
       }},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.moment);
    Job job;
    job.make_optimizer = one.make;
    const torch::nn::Linear wide(64, 64);  // moments of small tensors stay in FP32
    job.model->register_module("wide", wide);
    job.plant(17, [&](const Tensor& x) { return x + wide->weight.sum(); });
    job.spoil([&](torch::optim::Optimizer& o) { one.spoil(o, wide->weight); });
    const auto reported = job.origins();
    ASSERT_EQ(reported.size(), 1u);
    EXPECT_EQ(reported[0].place, Place::state) << to_string(reported[0]);
    EXPECT_EQ(reported[0].name, one.moment + " of wide.weight");
    EXPECT_EQ(reported[0].step, 3);
  }
}

TEST(OriginSearch, AMomentThatACheckpointHolds) {
  Job job;
  job.options.max_steps = 2;
  const Tensor weight = job.model->linear(17)->weight;
  job.before_fit = [&](torch::optim::Optimizer& o) {
    o.zero_grad();
    for (const Tensor& p : job.model->parameters()) p.mutable_grad() = at::ones_like(p);
    o.step();
    o.zero_grad();
    std::stringstream file;
    torch::serialize::OutputArchive out;
    state_of(o, weight)["exp_avg"].view(-1)[0] = std::nan("");
    o.save(out);
    out.save_to(file);
    torch::serialize::InputArchive in;
    in.load_from(file);
    o.load(in);
  };
  expect_before(job.origins(), "exp_avg of blocks.17.weight", "1 NaN", 1);
}

// In training nothing reads it: the loss is finite until the model is evaluated.
TEST(OriginSearch, ARunningVarianceThatIsSpoiledBetweenTwoSteps) {
  Job job;
  job.spoil(
      [&](torch::optim::Optimizer&) { job.model->batch_norm->running_var[3] = std::nan(""); });
  expect_before(job.origins(), "buffer batch_norm.running_var", "1 NaN", 3);
}

TEST(OriginSearch, AWeightThatIsSpoiledBetweenTwoSteps) {
  Job job;
  job.spoil([&](torch::optim::Optimizer&) {
    const at::NoGradGuard no_grad;
    job.model->head->weight[0][0] = std::nan("");
  });
  expect_before(job.origins(), "parameter head.weight", "1 NaN", 3);
}

TEST(OriginSearch, AMaskInABufferIsNoFault) {
  Job job;
  job.model->register_buffer("mask", at::full({3}, -kInfinity));
  EXPECT_TRUE(job.origins().empty());
}

// 1 / sqrt(Inf) is 0: the branch is dead, and loss and gradients are finite.
Tensor dead_norm(const Tensor& x, double factor) {
  const Tensor y = x * factor;
  return y * at::rsqrt((y * y).mean(1, true));
}

TEST(OriginSearch, AnInfThatVanishesAgain) {
  Job job;
  job.plant(9, [](const Tensor& x) { return x + dead_norm(x, 1e25); });
  const auto reported = job.origins();
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_TRUE(reported[0].vanishes);
  EXPECT_EQ(reported[0].place, Place::forward);
  EXPECT_EQ(reported[0].name, "blocks.9");
  EXPECT_EQ(reported[0].op, "aten::mul");
  EXPECT_THAT(to_string(reported[0]),
              HasSubstr("it vanishes again: loss and gradients are finite"));
  EXPECT_THAT(to_string(reported[0]), HasSubstr("too large: a lower learning rate"));
}

TEST(OriginSearch, AnInfOf16BitsThatVanishesAgain) {
  Job job;
  job.precision("fp16");
  job.options.loss_scale = {LossScale::Kind::fixed, 1};
  job.plant(9, [](const Tensor& x) { return x + dead_norm(x.matmul(at::eye(kWidth)), 1000); });
  const auto reported = job.origins();
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_TRUE(reported[0].vanishes);
  EXPECT_EQ(reported[0].op, "aten::mul");
  for (const Origin::Trial& trial : reported[0].trials) {
    EXPECT_FALSE(trial.autocast);
    EXPECT_TRUE(trial.values_are_finite);
  }
  EXPECT_THAT(to_string(reported[0]), HasSubstr("16 bits make it"));
}

TEST(OriginSearch, InFp32ItSaysWhatToDo) {
  Job job;
  job.plant(7, [](const Tensor& x) { return x / at::zeros_like(x); });
  const auto reported = job.origins();
  ASSERT_EQ(reported.size(), 1u);
  EXPECT_TRUE(reported[0].trials.empty());
  EXPECT_THAT(to_string(reported[0]), HasSubstr("add an epsilon"));
}

// A dynamic scale that is too high at the beginning is no fault: what is one is reported before it.
TEST(OriginSearch, AnInputBeyondFp16IsToldFirst) {
  for (const int row : {2, 8}) {  // in the first batch, in the second
    Job job;
    job.precision("fp16");
    job.options.max_steps = 2;
    job.options.scaler.init_scale = 0x1p120;
    job.input[row][3] = 1e6;  // beyond 65504
    const auto reported = job.origins();
    ASSERT_EQ(reported.size(), 2u);
    EXPECT_EQ(reported[0].step, row == 2 ? 1 : 2);
    EXPECT_EQ(reported[0].place, Place::forward);
    EXPECT_EQ(reported[0].name, "blocks.0");
    EXPECT_TRUE(reported[1].is_loss_scale());
  }
}

TEST(OriginSearch, AFixedScaleThatIsTooHighIsToldAtOnce) {
  Job job;
  job.precision("fp16");
  job.options.max_steps = 2;
  job.options.loss_scale = {LossScale::Kind::fixed, 0x1p100};
  job.input[8][3] = 1e6;
  const auto reported = job.origins();
  ASSERT_EQ(reported.size(), 2u);
  EXPECT_TRUE(reported[0].is_loss_scale());
  EXPECT_EQ(reported[0].step, 1);
}

// What is there before the step.

TEST(OriginSearch, ABatchThatHoldsNaN) {
  Job job;
  job.input[2][3] = std::nan("");
  expect_named(job, {Place::data, "input", "", ""});
}

TEST(OriginSearch, AParameterThatHoldsNaN) {
  Job job;
  {
    const at::NoGradGuard no_grad;
    job.model->linear(3)->weight[1][1] = std::nan("");
  }
  expect_named(job, {Place::state, "parameter blocks.3.weight", "", ""});
}

// -Inf that is meant is not named, what comes after it is.
TEST(OriginSearch, AMaskIsNoFault) {
  const auto masked = [](const at::Tensor& x) {
    const at::Tensor mask = at::ones({kWidth, kWidth}).tril().eq(0);
    const at::Tensor scores = x.t().matmul(x).masked_fill(mask, -kInfinity);
    return x + 0.01 * x.matmul(scores.softmax(1));
  };
  Job sound;
  sound.plant(30, masked);
  EXPECT_TRUE(sound.origins().empty());
  Job job;
  job.model->plant = [&](int64_t i, const at::Tensor& x) {
    return i == 30 ? masked(x) : i == 44 ? (x * 0).log() : x;
  };
  expect_named(job, {Place::forward, "blocks.44", "aten::log", ""});
}

TEST(OriginSearch, ARowThatIsMaskedWhole) {
  Job job;
  job.plant(30, [](const at::Tensor& x) {
    return x + at::full_like(x, -kInfinity).softmax(1) +
           at::masked_fill(x, at::ones_like(x, c10::kBool), -kInfinity).softmax(1);
  });
  expect_named(job, {Place::forward, "blocks.30", "aten::softmax", "aten::_softmax"});
}

// Dropout, batch normalization, skipped steps: searching changes no bit of the run.
TEST(OriginSearch, ChangesNoBitOfTheTraining) {
  const auto weights_after = [](bool search) {
    Job job;
    job.precision("fp16");
    job.options.max_steps = 4;
    job.options.epochs = 2;
    job.options.scaler.init_scale = 0x1p120;
    job.options.scaler.backoff_factor = 0x1p-60;
    job.model->drops = true;
    job.options.optimizers = {
        std::make_shared<optim::Adam>(job.model->parameters(), optim::AdamOptions(1e-2))};
    train::Trainer trainer(train::network(job.model), job.options);
    int reported = 0;
    if (search)
      trainer.add(std::make_shared<OriginSearch>([&](const Origin& o) {
        ++reported;
        EXPECT_TRUE(o.is_loss_scale()) << to_string(o);
      }));
    torch::manual_seed(9);
    const train::History history = trainer.fit(Rows(job.input, job.target, 6));
    EXPECT_GT(history.skipped_steps, 0);
    EXPECT_LT(history.skipped_steps, 4);
    EXPECT_EQ(reported, search ? 1 : 0);
    std::vector<at::Tensor> all = job.model->parameters();
    for (const at::Tensor& buffer : job.model->buffers()) all.push_back(buffer);
    return all;
  };
  const auto with = weights_after(true), without = weights_after(false);
  for (std::size_t i = 0; i < with.size(); ++i) EXPECT_TRUE(with[i].equal(without[i])) << i;
}

TEST(OriginSearch, ASpoiledBatchOfAWindowIsToldOnce) {
  Job job;
  job.options.accumulate = 2;
  job.input[2][3] = std::nan("");
  expect_named(job, {Place::data, "input", "", ""});
}

TEST(OriginSearch, ASoundRunIsQuiet) {
  Job job;
  EXPECT_TRUE(job.origins().empty());
}

}  // namespace
}  // namespace demi::monitor
