// The step object against the plain calls written out, and the order in which it may be used.
#include "demi/loop/step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "demi/autocast/autocast.h"
#include "demi/autocast/backward.h"
#include "demi/autocast/to_precision.h"
#include "demi/checkpoint/training_state.h"
#include "demi/core/error.h"
#include "demi/optim/adamw.h"
#include "demi/optim/clip.h"
#include "demi/optim/ema.h"
#include "demi/optim/sgd.h"
#include "demi/schedule/lr_scheduler.h"

namespace demi::loop {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Losses = std::vector<at::Tensor>;
using torch::nn::functional::cross_entropy;

torch::nn::Sequential make_model(int64_t seed = 1, int64_t in = 6, int64_t out = 3) {
  torch::manual_seed(seed);
  return torch::nn::Sequential(torch::nn::Linear(in, 8), torch::nn::Tanh(),
                               torch::nn::Linear(8, out));
}

at::Tensor x_of(int64_t n) {
  return (torch::arange(24, at::kDouble) * 0.7 + n).sin().reshape({4, 6}).to(at::kFloat);
}
at::Tensor y_of(int64_t n) { return (torch::arange(4) + n) % 3; }

std::vector<at::Tensor> values_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& p : module.parameters()) all.push_back(p.detach().clone());
  for (const at::Tensor& b : module.buffers()) all.push_back(b.detach().clone());
  return all;
}

void expect_same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(a[i].equal(b[i])) << "tensor " << i << ": " << a[i] << b[i];
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no UsageError";
}

struct OnePrecision : ::testing::TestWithParam<const char*> {};

// Three steps of two batches, clipped.
TEST_P(OnePrecision, GivesTheBitsOfThePlainCalls) {
  const Precision precision = parse_precision(GetParam());
  const GradScalerOptions scaling{.init_scale = 256, .enabled = precision.autocast == at::kHalf};

  auto plain = make_model();
  if (!precision.is_mixed() && precision.weights != at::kFloat)
    to_precision(*plain, precision.weights, /*keep_normalisation_fp32=*/false);
  optim::AdamW adamw(plain->parameters(), optim::AdamWOptions(1e-2));
  adamw.set_low_precision_grads(true);
  GradScaler scaler(scaling);
  std::vector<double> losses;
  for (int64_t n = 0; n < 6; ++n) {
    at::Tensor output;
    {
      const Autocast region(
          at::kCPU, AutocastOptions{.dtype = precision.autocast, .enabled = precision.is_mixed()});
      output = plain->forward(x_of(n).to(precision.weights));
    }
    const at::Tensor loss = cross_entropy(output.to(at::kFloat), y_of(n));
    losses.push_back(loss.item<double>());
    demi::backward(scaler.scale(loss / 2.0));
    if (n % 2 == 0) continue;
    scaler.unscale_(adamw);
    optim::clip_grad_norm_(plain->parameters(), 0.5);
    scaler.step(adamw);
    scaler.update();
    adamw.zero_grad();
  }

  auto model = make_model();
  optim::AdamW stepped(model->parameters(), optim::AdamWOptions(1e-2));
  GradScaler other(scaling);
  {
    Step step({.models = {model.ptr().get()}, .optimizers = {&stepped}, .scaler = &other},
              {.precision = precision, .accumulate = 2, .clip_norm = 0.5});
    EXPECT_TRUE(stepped.low_precision_grads());
    for (int64_t n = 0; n < 6; ++n) {
      const at::Tensor loss = step.batch(
          [&] { return model->forward(step.input(x_of(n))); },
          [&](const at::Tensor& out) { return cross_entropy(out.to(at::kFloat), y_of(n)); });
      EXPECT_EQ(loss.item<double>(), losses[static_cast<std::size_t>(n)]);
      EXPECT_FALSE(loss.requires_grad());
      EXPECT_EQ(step.is_due(), n % 2 == 1);
      if (!step.is_due()) continue;
      EXPECT_EQ(step.finish().size(), 1U);
    }
    EXPECT_EQ(step.steps_taken(), 3);
  }
  EXPECT_FALSE(stepped.low_precision_grads());
  expect_same_bits(values_of(*model), values_of(*plain));
  EXPECT_EQ(other.get_growth_tracker(), scaler.get_growth_tracker());
}

INSTANTIATE_TEST_SUITE_P(Step, OnePrecision,
                         ::testing::Values("fp32", "bf16", "fp16", "bf16-true", "fp64"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

// One model, SGD, plain data.
struct Loop {
  torch::nn::Sequential model = make_model();
  optim::SGD sgd{model->parameters(), optim::SGDOptions(0.1)};
  GradScaler scaler{GradScalerOptions{.init_scale = 64}};

  Job job() { return {.models = {model.ptr().get()}, .optimizers = {&sgd}, .scaler = &scaler}; }
  at::Tensor batch(Step& step, int64_t n, MicroBatch how = {}) {
    return step.batch([this, n] { return model->forward(x_of(n)); },
                      [n](const at::Tensor& out) { return cross_entropy(out, y_of(n)); }, how);
  }
};

TEST(Step, IsCutShortWhereTheCallerSaysLast) {
  Loop cut, plain;
  Step step(cut.job(), {.accumulate = 4});
  cut.batch(step, 0);
  EXPECT_FALSE(step.is_due());
  cut.batch(step, 1, {.last = true});
  EXPECT_TRUE(step.is_due());
  step.finish();
  for (int64_t n : {0, 1})  // each loss is divided by accumulate, as Trainer does
    demi::backward(plain.scaler.scale(cross_entropy(plain.model->forward(x_of(n)), y_of(n)) / 4));
  plain.scaler.step(plain.sgd);
  expect_same_bits(values_of(*cut.model), values_of(*plain.model));
}

// Two turns with one scaler: what torch's recipe for several models and optimizers does.
TEST(Step, ServesTheTurnsOfAGan) {
  const auto noise = [](int64_t n) { return x_of(n + 100); };
  const auto train = [&](bool by_step) {
    auto g = make_model(1, 6, 6), d = make_model(2, 6, 1);
    optim::SGD adam_g(g->parameters(), optim::SGDOptions(0.1)),
        adam_d(d->parameters(), optim::SGDOptions(0.1));
    GradScaler scaler({.init_scale = 64, .growth_interval = 3});
    const auto critic_loss = [&](int64_t n) {
      return d->forward(g->forward(noise(n)).detach()).mean() - d->forward(x_of(n)).mean();
    };
    const auto generator_loss = [&](int64_t n) { return -d->forward(g->forward(noise(n))).mean(); };
    std::optional<Step> step;
    if (by_step)
      step.emplace(Job{.models = {{"generator", g.ptr().get()}, {"critic", d.ptr().get()}},
                       .optimizers = {&adam_g, &adam_d},
                       .scaler = &scaler},
                   Options{.precision = parse_precision("bf16")});
    for (int64_t n = 0; n < 4; ++n) {
      if (step) {
        step->batch(Step::Losses([&] { return Losses{critic_loss(n)}; }), {.of = {&adam_d}});
        EXPECT_FALSE(step->is_due());
        for (const at::Tensor& p : g->parameters()) EXPECT_FALSE(p.grad().defined());
        step->take(adam_d);
        step->batch(Step::Losses([&] { return Losses{generator_loss(n)}; }));
        EXPECT_TRUE(step->is_due());
        for (const at::Tensor& p : d->parameters()) EXPECT_FALSE(p.grad().defined());
        EXPECT_EQ(step->finish().size(), 2U);
        continue;
      }
      for (optim::SGD* one : {&adam_g, &adam_d}) one->set_low_precision_grads(true);
      at::Tensor loss;
      {
        const Autocast region(at::kCPU, at::kBFloat16);
        loss = critic_loss(n);
      }
      demi::backward(scaler.scale(loss));
      scaler.step(adam_d);
      {
        const Autocast region(at::kCPU, at::kBFloat16);
        loss = generator_loss(n);
      }
      demi::backward(scaler.scale(loss));
      scaler.step(adam_g);
      scaler.update();
      adam_g.zero_grad();
      adam_d.zero_grad();
    }
    // Three updates make it grow, the fourth is the first of the next three.
    EXPECT_EQ(scaler.get_scale(), 128);
    EXPECT_EQ(scaler.get_growth_tracker(), 1);
    auto all = values_of(*g);
    for (const at::Tensor& p : values_of(*d)) all.push_back(p);
    return all;
  };
  expect_same_bits(train(true), train(false));
}

TEST(Step, TakesOnlyTheOptimizersThatHadABatch) {
  auto g = make_model(1), d = make_model(2);
  optim::SGD of_g(g->parameters(), optim::SGDOptions(0.1)),
      of_d(d->parameters(), optim::SGDOptions(0.1));
  const auto before = values_of(*g);
  Step step({.models = {{"g", g.ptr().get()}, {"d", d.ptr().get()}}, .optimizers = {&of_g, &of_d}});
  step.batch([&] { return d->forward(x_of(0)); },
             [](const at::Tensor& out) { return out.square().mean(); }, {.of = {&of_d}});
  EXPECT_EQ(step.finish().size(), 1U);
  expect_same_bits(values_of(*g), before);
}

// weight x |d loss / d parameters| on the graph, as torch's page on gradient penalties has it.
TEST(Step, GivesTrueGradientsForAPenalty) {
  Loop penalised, plain;
  Step step(penalised.job(), {.precision = parse_precision("fp16"), .low_precision_grads = false});
  step.batch([&] { return penalised.model->forward(x_of(0)); },
             [&](const at::Tensor& out) {
               const at::Tensor loss = cross_entropy(out, y_of(0));
               at::Tensor squares = torch::zeros({});
               for (const at::Tensor& g : step.gradients(loss, penalised.model->parameters())) {
                 EXPECT_EQ(g.scalar_type(), at::kFloat);
                 squares = squares + g.square().sum();
               }
               return loss + 0.1 * squares.sqrt();
             });
  at::Tensor output;
  {
    const Autocast region(at::kCPU, at::kHalf);
    output = plain.model->forward(x_of(0));
  }
  const at::Tensor loss = cross_entropy(output.to(at::kFloat), y_of(0));
  const double inverse = 1.0 / 64;
  at::Tensor squares = torch::zeros({});
  for (const at::Tensor& g :
       torch::autograd::grad({plain.scaler.scale(loss)}, plain.model->parameters(), {}, true, true))
    squares = squares + (g * inverse).square().sum();
  demi::backward(plain.scaler.scale(loss + 0.1 * squares.sqrt()));
  for (std::size_t i = 0; i < plain.model->parameters().size(); ++i) {
    const at::Tensor a = penalised.model->parameters()[i].grad(),
                     b = plain.model->parameters()[i].grad();
    EXPECT_TRUE(a.equal(b)) << a << b;
  }
}

TEST(Step, ServesAnOptimizerWithAClosure) {
  auto model = make_model(), plain = make_model();
  torch::optim::LBFGS by_step(model->parameters(), torch::optim::LBFGSOptions(0.5).max_iter(4)),
      alone(plain->parameters(), torch::optim::LBFGSOptions(0.5).max_iter(4));
  GradScaler scaler({.init_scale = 64}), other({.init_scale = 64});
  Step step({.models = {model.ptr().get()}, .optimizers = {&by_step}, .scaler = &scaler});
  for (int64_t n = 0; n < 2; ++n) {
    step.take(
        by_step, [&] { return model->forward(x_of(n)); },
        [&](const at::Tensor& out) { return cross_entropy(out, y_of(n)); });
    EXPECT_TRUE(step.is_due());
    EXPECT_EQ(step.finish().size(), 1U);
    other.step(alone, [&] {
      alone.zero_grad();
      const at::Tensor loss = cross_entropy(plain->forward(x_of(n)), y_of(n));
      other.scale(loss).backward();
      return loss;
    });
    other.update();
  }
  expect_same_bits(values_of(*model), values_of(*plain));
}

// A batch of one optimizer is none of those of all.
TEST(Step, IsDueByTheBatchesOfAllOptimizers) {
  Loop loop;
  Step step(loop.job(), {.accumulate = 2});
  loop.batch(step, 0, {.of = {&loop.sgd}});
  loop.batch(step, 1);
  EXPECT_FALSE(step.is_due());
  loop.batch(step, 2, {.of = {&loop.sgd}});
  EXPECT_FALSE(step.is_due());
  loop.batch(step, 3);
  EXPECT_TRUE(step.is_due());
}

// Its line search compares losses with gradients: both are those of the weighted part of a step.
TEST(Step, GivesAnOptimizerTheLossOfItsGradients) {
  auto model = make_model(), plain = make_model();
  const auto line_search =
      torch::optim::LBFGSOptions(1.0).max_iter(4).line_search_fn("strong_wolfe");
  torch::optim::LBFGS by_step(model->parameters(), line_search),
      alone(plain->parameters(), line_search);
  Step step({.models = {model.ptr().get()}, .optimizers = {&by_step}}, {.accumulate = 2});
  for (int64_t n = 0; n < 2; ++n) {
    const StepResult result = step.take(
        by_step, [&] { return model->forward(x_of(n)); },
        [&](const at::Tensor& out) { return cross_entropy(out, y_of(n)); }, {.weight = 0.5});
    step.finish();
    const at::Tensor expected = alone.step([&] {
      alone.zero_grad();
      const at::Tensor loss = cross_entropy(plain->forward(x_of(n)), y_of(n)) / 4;
      loss.backward();
      return loss;
    });
    EXPECT_EQ(result.loss().item<double>(), expected.item<double>());
  }
  expect_same_bits(values_of(*model), values_of(*plain));
}

// An exception drops the step that it falls into, and nothing else.
TEST(Step, IsDroppedByAnException) {
  Loop thrown, plain;
  Step step(thrown.job(), {.accumulate = 2}), other(plain.job(), {.accumulate = 2});
  thrown.batch(step, 7);
  EXPECT_TRUE(step.is_open());
  const auto fails = [&](const Step::Forward& forward, const Step::Loss& loss) {
    EXPECT_THROW(step.batch(forward, loss), std::runtime_error);
    EXPECT_FALSE(step.is_open());
    EXPECT_THAT(message_of([&] { step.finish(); }), HasSubstr("without a batch"));
    for (const at::Tensor& p : thrown.model->parameters()) EXPECT_FALSE(p.grad().defined());
  };
  const auto forward = [&] { return thrown.model->forward(x_of(0)); };
  const auto loss = [](const at::Tensor& out) { return out.square().mean(); };
  fails([]() -> at::Tensor { throw std::runtime_error("forward"); }, loss);
  fails(forward, [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("loss"); });
  struct Fault : torch::autograd::Function<Fault> {
    static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
      return x.clone();
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                   const torch::autograd::variable_list&) {
      throw std::runtime_error("backward");
    }
  };
  fails(forward, [](const at::Tensor& out) { return Fault::apply(out.square().mean()); });
  struct Throws : StepObserver {
    bool on = true;
    void after_backward(const StepView&) override {
      if (on) throw std::runtime_error("observer");
    }
  };
  const auto observer = std::make_shared<Throws>();
  step.watch(observer);
  fails(forward, loss);
  observer->on = false;
  for (int64_t n = 0; n < 2; ++n) {
    thrown.batch(step, n);
    plain.batch(other, n);
  }
  step.finish();
  other.finish();
  expect_same_bits(values_of(*thrown.model), values_of(*plain.model));
}

// An average that is in its weights' place may not be updated.
TEST(Step, IsTakenAndClosedIfTheAverageThrows) {
  Loop thrown, plain, aside;
  EMA average(*aside.model);
  Job job = thrown.job();
  job.average = &average;
  Step step(job), other(plain.job());
  for (int64_t n = 0; n < 3; ++n) {
    thrown.batch(step, n);
    plain.batch(other, n);
    other.finish();
    if (n == 1) {
      average.swap();
      EXPECT_THROW(step.finish(), UsageError);
      average.restore();
    } else {
      step.finish();
    }
    EXPECT_FALSE(step.is_open());
    EXPECT_EQ(step.steps_taken(), n + 1);
    EXPECT_EQ(thrown.scaler.get_growth_tracker(), plain.scaler.get_growth_tracker());
    for (const at::Tensor& p : thrown.model->parameters()) EXPECT_FALSE(p.grad().defined());
  }
  expect_same_bits(values_of(*thrown.model), values_of(*plain.model));
}

TEST(Step, SaysWhatIsOutOfOrder) {
  Loop loop;
  Step step(loop.job());
  EXPECT_THAT(message_of([&] { step.finish(); }), HasSubstr("without a batch"));
  EXPECT_THAT(message_of([&] { step.take(loop.sgd); }), HasSubstr("taken without a batch"));
  loop.batch(step, 0);
  step.take(loop.sgd);
  EXPECT_THAT(message_of([&] { step.take(loop.sgd); }), HasSubstr("taken twice"));
  EXPECT_THAT(message_of([&] { loop.batch(step, 1, {.of = {&loop.sgd}}); }),
              HasSubstr("taken in this step"));
  Loop other;
  EXPECT_THAT(message_of([&] { step.take(other.sgd); }), HasSubstr("none of the job's"));
  EXPECT_THAT(message_of([&] { step.watch(nullptr); }), HasSubstr("observer is null"));
}

TEST(Step, RefusesAJobThatCannotBeTrained) {
  Loop loop, other;
  const auto refused = [](const Job& job, const Options& options = {}) {
    return message_of([&] { const Step step(job, options); });
  };
  EXPECT_THAT(refused({.models = {}, .optimizers = {&loop.sgd}}), HasSubstr("there is no model"));
  EXPECT_THAT(refused({.models = {loop.model.ptr().get()}}), HasSubstr("there is no optimizer"));
  EXPECT_THAT(refused({.models = {nullptr}, .optimizers = {&loop.sgd}}),
              HasSubstr("a model is null"));
  EXPECT_THAT(refused({.models = {loop.model.ptr().get()}, .optimizers = {nullptr}}),
              HasSubstr("an optimizer is null"));
  EXPECT_THAT(refused({.models = {loop.model.ptr().get()}, .optimizers = {&other.sgd}}),
              HasSubstr("is of no model"));
  EXPECT_THAT(refused({.models = {{"a", loop.model.ptr().get()}, {"a", other.model.ptr().get()}},
                       .optimizers = {&loop.sgd}}),
              HasSubstr("one name"));
  EXPECT_THAT(refused({.models = {loop.model.ptr().get(), other.model.ptr().get()},
                       .optimizers = {&loop.sgd}}),
              HasSubstr("empty or has a dot"));
  EXPECT_THAT(refused(loop.job(), {.accumulate = 0}), HasSubstr("accumulate is below 1"));
  EXPECT_THAT(refused(loop.job(), {.clip_norm = -1}), HasSubstr("clip_norm is negative"));
  EXPECT_THAT(refused(loop.job(), {.clip_value = -1}), HasSubstr("clip_value is negative"));
  EXPECT_THAT(refused(loop.job(), {.read_every = -1}), HasSubstr("read_every is negative"));
  {
    const Step holds(loop.job());
    EXPECT_THAT(refused({.models = {other.model.ptr().get()},
                         .optimizers = {&other.sgd},
                         .scaler = &loop.scaler}),
                HasSubstr("the scaler is held by another Step"));
    EXPECT_THAT(refused({.models = {loop.model.ptr().get()}, .optimizers = {&loop.sgd}}),
                HasSubstr("an optimizer is held by another Step"));
  }
  EXPECT_EQ(refused(loop.job()), "no UsageError");
}

// Errors about losses, in which LibTorch names neither loss nor caller.
TEST(Step, RefusesWhatIsNoLoss) {
  Loop loop;
  Step step(loop.job());
  const auto refused = [&](const Step::Loss& loss) {
    return message_of([&] { step.batch([&] { return loop.model->forward(x_of(0)); }, loss); });
  };
  EXPECT_THAT(refused([](const at::Tensor& out) { return out; }),
              HasSubstr("not one floating point number"));
  EXPECT_THAT(refused([](const at::Tensor&) { return at::Tensor(); }), HasSubstr("undefined"));
  EXPECT_THAT(refused([](const at::Tensor&) { return torch::zeros({}); }),
              HasSubstr("depends on nothing that is trained"));
  EXPECT_THAT(message_of([&] { step.batch(Step::Losses([] { return Losses(); })); }),
              HasSubstr("has no loss"));
  EXPECT_THAT(message_of([&] { loop.batch(step, 0, {.weight = -1}); }),
              HasSubstr("weight of a batch"));
}

struct Seen : StepObserver {
  std::vector<std::string> events;
  std::vector<StepMetrics> records;
  std::function<void(const StepView&)> look;
  void note(const char* what, const StepView& view) {
    events.push_back(std::string(what) + " " + std::to_string(view.step) +
                     (view.ends_step ? " last" : ""));
  }
  void before_forward(const StepView& view) override { note("forward", view); }
  void after_forward(const StepView& view, const at::Tensor&) override { note("output", view); }
  void after_backward(const StepView& view) override {
    note("backward", view);
    if (look) look(view);
  }
  void after_update(const StepView& view) override {
    note("update", view);
    EXPECT_EQ(view.results.size(), 1U);
    EXPECT_THAT(message_of([&] { view.repeat({}); }), HasSubstr("after the update"));
  }
  void on_step(const StepMetrics& step, int64_t) override {
    events.push_back("read " + std::to_string(step.step));
    records.push_back(step);
  }
};

TEST(Step, IsWatched) {
  Loop loop;
  Step step(
      loop.job(),
      {.precision = parse_precision("fp16"), .accumulate = 2, .read_every = 2, .steps_taken = 10});
  const auto seen = std::make_shared<Seen>();
  step.watch(seen);
  std::vector<double> losses;
  for (int64_t n = 0; n < 4; ++n) {
    losses.push_back(loop.batch(step, n, {.epoch = 3}).item<double>());
    if (step.is_due()) step.finish();
  }
  EXPECT_THAT(seen->events,
              ElementsAre("forward 11", "output 11", "backward 11", "forward 11 last",
                          "output 11 last", "backward 11 last", "update 11 last", "forward 12",
                          "output 12", "backward 12", "forward 12 last", "output 12 last",
                          "backward 12 last", "update 12 last", "read 11", "read 12"));
  ASSERT_EQ(seen->records.size(), 2U);
  EXPECT_EQ(seen->records[0].epoch, 3);
  EXPECT_FLOAT_EQ(static_cast<float>(seen->records[0].loss),
                  static_cast<float>((losses[0] + losses[1]) / 2));
  EXPECT_EQ(seen->records[0].loss_scale, 64);
  EXPECT_EQ(seen->records[0].learning_rate, 0.1);
  EXPECT_FALSE(seen->records[0].skipped);
  EXPECT_GT(seen->records[1].grad_norm.value_or(0), 0);
  EXPECT_GE(seen->records[1].seconds, 0);
}

// Of the step that has begun nothing was recorded: it is the next one that is read.
TEST(Step, RecordsTheRatesOfATable) {
  torch::nn::Linear one(torch::nn::LinearOptions(1, 1).bias(false));
  optim::SGD sgd(one->parameters(), optim::SGDOptions(7));
  sgd.set_scheduled_rates(0, {4, 2, 1});
  Step step(Job{.models = {one.get()}, .optimizers = {&sgd}},
            {.precision = parse_precision("fp32"), .read_every = 3});
  const auto seen = std::make_shared<Seen>();
  step.watch(seen);
  std::vector<float> applied;
  for (const double gradient : {1.0, 1.0, std::nan(""), 1.0, 1.0, 1.0}) {
    const float before = one->weight.item<float>();
    step.batch(Step::Losses([&] { return Losses{one->weight.sum() * gradient}; }));
    step.finish();
    applied.push_back(before - one->weight.item<float>());
  }
  EXPECT_THAT(applied, ::testing::Pointwise(::testing::FloatNear(1e-5F),
                                            std::vector<float>{4, 2, 0, 1, 1, 1}));
  std::vector<double> rates;
  for (const StepMetrics& record : seen->records) rates.push_back(record.learning_rate);
  EXPECT_THAT(rates, ElementsAre(4, 2, 1, 1, 1, 1));
}

TEST(Step, IsWatchedFromTheMiddleOfAStep) {
  Loop loop;
  Step step(loop.job(), {.read_every = 1});
  loop.batch(step, 0);
  const auto seen = std::make_shared<Seen>();
  step.watch(seen);
  step.finish();
  EXPECT_TRUE(seen->records.empty());
  loop.batch(step, 1);
  step.finish();
  ASSERT_EQ(seen->records.size(), 1U);
  EXPECT_EQ(seen->records[0].step, 2);
}

// Scaled and in 16 bits in .grad, and neither in what an observer asks for.
TEST(Step, GivesObserversTrueGradients) {
  Loop loop, plain;
  cross_entropy(plain.model->forward(x_of(0)), y_of(0)).backward();
  Step step(loop.job(), {.precision = parse_precision("fp16")});
  const auto seen = std::make_shared<Seen>();
  int looked = 0;
  seen->look = [&](const StepView& view) {
    const auto truth = plain.model->parameters(), ours = view.module.parameters();
    for (std::size_t i = 0; i < ours.size(); ++i) {
      EXPECT_EQ(ours[i].grad().scalar_type(), at::kHalf);
      const at::Tensor gradient = view.gradient(ours[i]);
      EXPECT_EQ(gradient.scalar_type(), at::kFloat);
      // Products in fp16: 11 bits of each factor, over a depth of 8.
      EXPECT_TRUE(gradient.allclose(truth[i].grad(), 1e-2, 1e-3)) << gradient << truth[i].grad();
      ++looked;
    }
  };
  step.watch(seen);
  loop.batch(step, 0);
  EXPECT_EQ(looked, 4);
}

// Overflows in forward are in the running statistics before the step is skipped.
TEST(Step, GivesStatisticsOfASkippedStepBack) {
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(6, 8), torch::nn::BatchNorm1d(8),
                              torch::nn::Linear(8, 3));
  optim::SGD sgd(model->parameters(), optim::SGDOptions(0.1));
  GradScaler scaler({.init_scale = 64});
  EMA average(*model, 0.5);
  for (const bool guards : {true, false}) {
    const auto before = values_of(*model);
    const auto averages_before = average.averages().at("1.running_mean").clone();
    Step step({.models = {model.ptr().get()},
               .optimizers = {&sgd},
               .scaler = &scaler,
               .average = &average},
              {.precision = parse_precision("fp16"), .guard_statistics = guards});
    step.batch([&] { return model->forward(x_of(0) * 1e6); },
               [](const at::Tensor& out) { return cross_entropy(out, y_of(0)); });
    EXPECT_TRUE(step.finish().front().skipped());
    EXPECT_TRUE(average.averages().at("1.running_mean").equal(averages_before));
    if (guards) {
      expect_same_bits(values_of(*model), before);
    } else {
      EXPECT_FALSE(model->named_buffers()["1.running_mean"].isfinite().all().item<bool>());
    }
  }
}

TEST(Step, StepsSchedules) {
  Loop loop;
  optim::lr::Scheduler schedule(loop.sgd,
                                [](int64_t step, double base) { return base / double(step + 1); });
  Job job = loop.job();
  job.schedules = {&schedule};
  Step step(job, {.accumulate = 2});
  std::vector<double> rates;
  for (int64_t n = 0; n < 4; ++n) {
    loop.batch(step, n);
    if (step.is_due()) step.finish();
    rates.push_back(schedule.get_last_lr().front());
  }
  EXPECT_THAT(rates, ElementsAre(0.1, 0.1 / 2, 0.1 / 2, 0.1 / 3));
}

// A null is an optimizer without a schedule.
TEST(Step, TakesOneScheduleForEachOptimizerOrNone) {
  auto a = make_model(1), b = make_model(2, 3, 3);
  optim::SGD of_a(a->parameters(), optim::SGDOptions(0.1)),
      of_b(b->parameters(), optim::SGDOptions(0.1)), elsewhere(make_model()->parameters(), 0.1);
  optim::lr::Scheduler schedule(of_b, optim::lr::exponential(0.5)),
      again(of_b, optim::lr::exponential(0.5)), foreign(elsewhere, optim::lr::exponential(0.5));
  const auto job = [&](std::vector<optim::lr::Scheduler*> schedules) {
    return Job{.models = {{"a", a.ptr().get()}, {"b", b.ptr().get()}},
               .optimizers = {&of_a, &of_b},
               .schedules = std::move(schedules)};
  };
  {
    Step step(job({nullptr, &schedule}));
    step.batch([&] { return b->forward(a->forward(x_of(0))); },
               [](const at::Tensor& out) { return cross_entropy(out, y_of(0)); });
    step.finish();
    EXPECT_EQ(of_a.param_groups()[0].options().get_lr(), 0.1);
    EXPECT_EQ(of_b.param_groups()[0].options().get_lr(), 0.05);
  }
  EXPECT_THAT(message_of([&] {
                Step step(job({&schedule, &again}));
              }),
              AllOf(HasSubstr("an optimizer has two schedules"), HasSubstr("optimizer 1"),
                    HasSubstr("lr::sequential")));
  EXPECT_THAT(message_of([&] { Step step(job({&foreign})); }),
              HasSubstr("a schedule is of an optimizer that is none of the job's"));
}

// Gradients of -2 at a rate of 1 move a weight by 2, and a decay of 0.5 the average half-way. A
// step of the critic alone is none for the generator's average.
TEST(Step, AnAverageStaysWhileItsOptimizerHasNoTurn) {
  const auto one_weight = torch::nn::LinearOptions(1, 1).bias(false);
  torch::nn::Linear g(one_weight), c(one_weight);
  torch::nn::init::zeros_(g->weight);
  optim::SGD of_g(g->parameters(), optim::SGDOptions(1)),
      of_c(c->parameters(), optim::SGDOptions(1));
  EMA average(*g, 0.5);
  Step step({.models = {{"g", g.ptr().get()}, {"c", c.ptr().get()}},
             .optimizers = {&of_g, &of_c},
             .average = &average});
  const auto loss = [](const at::Tensor& out) { return -2 * out.sum(); };
  const auto turn = [&](torch::nn::Linear& model, optim::SGD& of) {
    step.batch([&] { return model->forward(torch::ones({1, 1})); }, loss, {.of = {&of}});
  };
  const auto now = [&] { return average.averages().at("weight").item<float>(); };
  turn(g, of_g);
  step.finish();
  EXPECT_EQ(now(), 1) << "half of the way from 0 to 2";
  turn(c, of_c);
  step.finish();
  EXPECT_EQ(now(), 1);
  turn(g, of_g);
  turn(c, of_c);
  step.finish();
  EXPECT_EQ(now(), 2.5) << "half of the way from 1 to 4";
}

// Two of its four batches were in the step when it was saved.
TEST(Step, AReopenedStepIsDueAfterTheBatchesThatItLacks) {
  const auto train = [](bool reopens) {
    Loop loop;
    std::optional<Step> step(std::in_place, loop.job(), Options{.accumulate = 4});
    for (int64_t n = 0; n < 4; ++n) {
      if (reopens && n == 2) {
        std::vector<at::Tensor> gradients;
        for (const at::Tensor& p : loop.model->parameters()) gradients.push_back(p.grad().clone());
        step.emplace(loop.job(), Options{.accumulate = 4});
        const auto parameters = loop.model->parameters();
        for (std::size_t i = 0; i < parameters.size(); ++i)
          parameters[i].mutable_grad() = gradients[i];
        step->reopen({}, 2);
      }
      loop.batch(*step, n);
      EXPECT_EQ(step->is_due(), n == 3) << n;
    }
    step->finish();
    return values_of(*loop.model);
  };
  expect_same_bits(train(true), train(false));
}

// Two models in one checkpoint; gradients are no part of one.
TEST(Step, IsSavedBetweenSteps) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("demi_step_test_" + std::to_string(::getpid()));
  struct Two {
    torch::nn::Sequential a = make_model(1), b = make_model(2, 3, 3);
    optim::AdamW of_a{a->parameters(), optim::AdamWOptions(1e-2)},
        of_b{b->parameters(), optim::AdamWOptions(1e-2)};
    GradScaler scaler{GradScalerOptions{.init_scale = 64, .growth_interval = 2}};
    Job job() {
      return {.models = {{"a", a.ptr().get()}, {"b", b.ptr().get()}},
              .optimizers = {&of_a, &of_b},
              .scaler = &scaler};
    }
    void train(int64_t from, int64_t to, const std::filesystem::path& save) {
      Step step(job(), {.precision = parse_precision("fp16"), .steps_taken = from});
      for (int64_t n = from; n < to; ++n) {
        step.batch([&] { return b->forward(a->forward(x_of(n))); },
                   [n](const at::Tensor& out) { return cross_entropy(out, y_of(n)); });
        if (n == from) {
          EXPECT_THAT(message_of([&] { checkpoint::save(save, n, job()); }),
                      HasSubstr("a step has begun and is not finished"));
        }
        step.finish();
      }
      checkpoint::save(save, step.steps_taken(), job());
    }
    std::vector<at::Tensor> values() {
      auto all = values_of(*a);
      for (const at::Tensor& one : values_of(*b)) all.push_back(one);
      return all;
    }
  };
  Two whole, first, second;
  whole.train(0, 5, folder / "whole");
  first.train(0, 3, folder / "parts");
  EXPECT_TRUE(checkpoint::load(folder / "parts").model.contains("b.0.weight"));
  checkpoint::load(folder / "parts", second.job());
  second.train(3, 5, folder / "more");
  expect_same_bits(second.values(), whole.values());
  EXPECT_EQ(second.scaler.get_scale(), whole.scaler.get_scale());
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace demi::loop
