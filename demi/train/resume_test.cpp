// A run that is stopped anywhere and goes on in new objects is the unbroken run, bit for bit. The
// truth is the unbroken run.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>

#include "demi/core/error.h"
#include "demi/data/prefetch_loader.h"
#include "demi/optim/adam.h"
#include "demi/optim/adamw.h"
#include "demi/optim/lamb.h"
#include "demi/optim/lion.h"
#include "demi/optim/sgd.h"
#include "demi/train/resume_testing.h"

namespace demi::train {
namespace {

using namespace testing;
using Parameters = std::vector<at::Tensor>;
using MakeOptimizer =
    std::function<std::shared_ptr<torch::optim::Optimizer>(const Parameters& parameters)>;

template <class Optimizer, class Options>
MakeOptimizer made_by(Options options) {
  return [options](const Parameters& parameters) {
    return std::make_shared<Optimizer>(parameters, options);
  };
}

const MakeOptimizer kAdamW = made_by<optim::AdamW>(optim::AdamWOptions(0.05).weight_decay(0.1));

// 2 epochs of 5 batches, the last of which is smaller, with validation. Each call gives other
// weights, so that weights that are not loaded show.
Job job(const char* precision = "fp32", const MakeOptimizer& make = kAdamW) {
  static uint64_t seed = 0;
  torch::manual_seed(++seed);
  Job one;
  SmallNet model;
  const Precision& chosen = parse_precision(precision);
  if (!chosen.is_mixed()) model->to(chosen.weights);  // as the trainer does, for the optimizer
  one.network = network(model);
  one.options.epochs = 2;
  one.options.precision = chosen;
  one.options.read_every = 4;
  one.options.optimizers = {make(model->parameters())};
  one.training = rows(18, 4, 7);
  one.validation = rows(7, 4, 8);
  return one;
}

void start_alike(const std::shared_ptr<torch::nn::Module>& module) {
  const torch::NoGradGuard no_grad;
  double value = 0;
  for (at::Tensor& parameter : module->parameters())
    parameter.copy_((torch::arange(parameter.numel(), torch::kDouble) * 1.3 + ++value)
                        .sin()
                        .reshape(parameter.sizes()) *
                    0.5);
}

// Tells what it heard, without times.
struct Heard : Callback {
  std::vector<std::string> all;
  void on_step(const StepMetrics& step, int64_t examples) override {
    all.push_back("step " + std::to_string(step.step) + " " + std::to_string(step.loss) + " " +
                  std::to_string(examples));
  }
  void on_epoch_end(const EpochRecord& epoch) override {
    all.push_back("epoch " + std::to_string(epoch.epoch) + " " + std::to_string(epoch.loss) + " " +
                  std::to_string(epoch.validation ? epoch.validation->loss : -1));
  }
};

void expect_same_history(const History& a, const History& b) {
  ASSERT_EQ(a.steps.size(), b.steps.size());
  ASSERT_EQ(a.epochs.size(), b.epochs.size());
  EXPECT_EQ(a.skipped_steps, b.skipped_steps);
  EXPECT_EQ(a.best_epoch, b.best_epoch);
  EXPECT_EQ(a.early_stopped, b.early_stopped);
  EXPECT_EQ(a.failed, b.failed);
  for (std::size_t i = 0; i < a.epochs.size(); ++i) {
    ASSERT_EQ(a.epochs[i].validation.has_value(), b.epochs[i].validation.has_value());
    if (!a.epochs[i].validation) continue;
    EXPECT_EQ(a.epochs[i].validation->metrics, b.epochs[i].validation->metrics);
  }
}

// Stops at every moment at which a run can be stopped, and goes on in new objects.
void expect_to_go_on(const std::function<Job()>& make) {
  const auto begin = [&] {
    Job one = make();
    start_alike(one.network.module);
    return one;
  };
  const auto heard = std::make_shared<Heard>();
  int64_t moments = 0;
  Job counted = begin();
  counted.options.should_stop = [&] { return ++moments < 0; };
  const Outcome whole = train(std::move(counted), nullptr, heard);
  ASSERT_GE(moments, 6);
  for (int64_t k = 1; k <= moments; ++k) {
    SCOPED_TRACE("stopped at moment " + std::to_string(k));
    const auto first = std::make_shared<Heard>(), second = std::make_shared<Heard>();
    const Outcome part = stopped_after(begin(), k, first);
    const Outcome rest = train(make(), &part.state, second);
    expect_same(whole.state, rest.state);
    expect_same_history(whole.history, rest.history);
    // An epoch that was cut short was told as such, and is told again when it is whole.
    if (part.state.numbers.at("progress").at("in_epoch") == 1) first->all.pop_back();
    first->all.insert(first->all.end(), second->all.begin(), second->all.end());
    EXPECT_EQ(first->all, heard->all);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(Resume, WithEveryOptimizer) {
  const std::pair<const char*, MakeOptimizer> all[] = {
      {"SGD", made_by<optim::SGD>(optim::SGDOptions(0.1))},
      {"momentum", made_by<optim::SGD>(optim::SGDOptions(0.1).momentum(0.9).nesterov(true))},
      {"Adam", made_by<optim::Adam>(optim::AdamOptions(0.02))},
      {"AdamW", kAdamW},
      {"amsgrad", made_by<optim::AdamW>(optim::AdamWOptions(0.02).amsgrad(true))},
      {"LAMB", made_by<optim::LAMB>(optim::LAMBOptions(0.05).weight_decay(0.1))},
      {"Lion", made_by<optim::Lion>(optim::LionOptions(0.01))},
      {"LibTorch's SGD", made_by<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9))},
      {"LibTorch's AdamW", made_by<torch::optim::AdamW>(torch::optim::AdamWOptions(0.02))},
      {"LibTorch's RMSprop", made_by<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.01))}};
  for (const auto& [name, make] : all) {
    SCOPED_TRACE(name);
    expect_to_go_on([make = make] { return job("fp32", make); });
  }
}

TEST(Resume, InEveryPrecision) {
  for (const char* precision : {"fp32", "bf16", "fp16", "bf16-true", "fp64"}) {
    SCOPED_TRACE(precision);
    expect_to_go_on([=] { return job(precision); });
  }
}

// A scale that overflows at first, backs off over several steps and grows again.
TEST(Resume, WithAScaleThatMoves) {
  for (const MakeOptimizer& make :
       {kAdamW, made_by<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9))}) {
    for (const LossScale::Kind kind : {LossScale::Kind::dynamic, LossScale::Kind::statistics}) {
      const auto moving = [&] {
        Job one = job("fp16", make);
        one.options.loss_scale.kind = kind;
        one.options.scaler = {.init_scale = 0x1p20, .growth_interval = 2, .amax_window = 3};
        one.options.clip_norm = 0.5;
        return one;
      };
      Job probe = moving();
      start_alike(probe.network.module);
      const History history = train(std::move(probe)).history;
      ASSERT_GE(history.skipped_steps, 1) << "the scale never overflowed";
      ASSERT_LT(history.skipped_steps, 8) << "the scale never fitted";
      expect_to_go_on(moving);
    }
  }
}

TEST(Resume, WithHysteresis) {
  expect_to_go_on([] {
    Job one = job("fp16");
    one.options.scaler = {.init_scale = 0x1p24, .growth_interval = 3, .hysteresis = 2};
    return one;
  });
}

TEST(Resume, InTheMiddleOfAWindow) {
  for (const char* precision : {"fp32", "bf16", "fp16", "bf16-true"}) {
    SCOPED_TRACE(precision);
    expect_to_go_on([=] {
      Job one = job(precision);
      one.options.accumulate = 3;  // 3 and 2 of the 5 batches
      one.options.scaler.init_scale = 256;
      return one;
    });
  }
}

TEST(Resume, WithAverageScheduleAndClipping) {
  for (const char* precision : {"fp32", "bf16", "bf16-true"}) {
    SCOPED_TRACE(precision);
    expect_to_go_on([=] {
      Job one = job(precision);
      one.options.ema_decay = 0.8;
      one.options.clip_norm = 0.3;
      const optim::lr::OneCycleOptions cycle{.total_steps = 10, .max_lr = 0.1};
      one.options.schedule = optim::lr::one_cycle(cycle);
      one.options.momentum_schedule = optim::lr::one_cycle_momentum(cycle);
      one.options.metrics = {top_k(2), mean_absolute_error()};
      one.options.metrics[1].sum = [](const at::Tensor& output, const at::Tensor&) {
        return output.to(at::kFloat).abs().sum();
      };
      return one;
    });
  }
}

// Steps of a schedule count from the start of the run, also of one that began without a schedule.
TEST(Resume, AScheduleThatTheRunDidNotHaveBeginsAtItsStep) {
  const auto make = [] { return job("fp32", made_by<optim::SGD>(optim::SGDOptions(0.1))); };
  const Outcome begun = stopped_after(make(), 4);
  const std::size_t taken = begun.history.steps.size();
  ASSERT_GE(taken, 2U);
  ASSERT_LT(taken, 10U);
  Job rest = make();
  rest.options.schedule = optim::lr::cosine(10);
  const Outcome whole = train(std::move(rest), &begun.state);
  ASSERT_EQ(whole.history.steps.size(), 10U);
  for (std::size_t t = 0; t < 10; ++t)
    EXPECT_NEAR(whole.history.steps[t].learning_rate,
                t < taken ? 0.1 : 0.1 * (1 + std::cos(M_PI * static_cast<double>(t) / 10)) / 2,
                1e-12)
        << t;
  EXPECT_EQ(whole.state.numbers.at("schedule").at("last_epoch"), 10);
  Job shorter = make();
  shorter.options.schedule = optim::lr::one_cycle({.total_steps = 1});
  EXPECT_THROW(train(std::move(shorter), &begun.state), UsageError) << "beyond its end";
}

// The loss of validation gets worse after the third epoch, where the rate becomes too high, so the
// run ends by itself.
TEST(Resume, KnowsTheBestForEarlyStopping) {
  const auto make = [] {
    Job one = job("fp32", made_by<optim::SGD>(optim::SGDOptions(0.05)));
    one.validation = rows(18, 4, 7);  // of the training data: gets better as training does
    one.options.epochs = 12;
    one.options.early_stopping = 2;
    one.options.loss = LossFunction([](const at::Tensor& output, const at::Tensor& target) {
      return loss_of(Loss::cross_entropy, output, target);  // without an accuracy: the loss decides
    });
    one.options.schedule = [](int64_t step, double base) { return step < 15 ? base : 400 * base; };
    return one;
  };
  Job probe = make();
  start_alike(probe.network.module);
  const History history = train(std::move(probe)).history;
  ASSERT_TRUE(history.early_stopped);
  ASSERT_GT(history.best_epoch, 1);
  expect_to_go_on(make);
}

// Another loader's batches, of NaN from the second epoch's third on.
class Poisoned : public data::Loader {
 public:
  explicit Poisoned(std::shared_ptr<const data::Loader> inner) : inner_(std::move(inner)) {}
  int64_t examples() const override { return inner_->examples(); }
  int64_t batches() const override { return inner_->batches(); }
  data::Batch batch(int64_t epoch, int64_t position) const override {
    data::Batch batch = inner_->batch(epoch, position);
    if (epoch > 1 || (epoch == 1 && position >= 2)) batch.input = batch.input * NAN;
    return batch;
  }

 private:
  std::shared_ptr<const data::Loader> inner_;
};

// Training ends at the same step whenever a state was saved, though the device is read for it.
TEST(Resume, GivesUpAtTheSameStep) {
  const auto make = [] {
    Job one = job("fp32", made_by<optim::SGD>(optim::SGDOptions(0.1)));
    one.options.epochs = 3;
    one.options.read_every = 3;
    one.options.give_up_after = 4;
    one.training = std::make_shared<Poisoned>(one.training);
    return one;
  };
  Job probe = make();
  start_alike(probe.network.module);
  const History history = train(std::move(probe)).history;
  ASSERT_TRUE(history.failed);
  ASSERT_GT(history.steps.size(), 11U) << "later than at the fourth bad step, when it is read";
  expect_to_go_on(make);
}

TEST(Resume, WithSeveralOptimizersAndLosses) {
  expect_to_go_on([] {
    Job one = job("fp16", made_by<optim::SGD>(optim::SGDOptions(0.1)));
    auto model = std::dynamic_pointer_cast<SmallNetImpl>(one.network.module);
    const auto all = model->parameters();
    const Parameters some(all.begin(), all.begin() + 3), others(all.begin() + 3, all.end());
    one.options.optimizers = {
        std::make_shared<optim::SGD>(some, optim::SGDOptions(0.1).momentum(0.9)),
        std::make_shared<torch::optim::Adam>(others, torch::optim::AdamOptions(0.02))};
    one.options.schedule = optim::lr::exponential(0.9);
    one.options.accumulate = 2;
    one.options.scaler = {.init_scale = 0x1p20, .growth_interval = 2};
    one.options.losses = [model](const Network&, const data::Batch& batch) {
      const at::Tensor output = model->forward(batch.input);
      return std::vector<at::Tensor>{loss_of(Loss::cross_entropy, output, batch.target),
                                     output.to(at::kFloat).square().mean()};
    };
    return one;
  });
}

// A learned temperature.
TEST(Resume, WithAParameterOutsideOfTheModel) {
  for (const bool ours : {true, false})
    expect_to_go_on([=] {
      Job one = job();
      const at::Tensor t = torch::full({1}, 1.5).requires_grad_();
      std::vector<at::Tensor> all = one.network.module->parameters();
      all.push_back(t);
      if (ours)
        one.options.optimizers = {std::make_shared<optim::AdamW>(all, optim::AdamWOptions(0.05))};
      else
        one.options.optimizers = {
            std::make_shared<torch::optim::AdamW>(all, torch::optim::AdamWOptions(0.05))};
      one.options.accumulate = 2;
      one.options.losses = [t](const Network& net, const data::Batch& batch) {
        return std::vector<at::Tensor>{
            torch::cross_entropy_loss(net.forward(batch) / t, batch.target)};
      };
      return one;
    });
}

TEST(Resume, WithPrefetchedBatches) {
  expect_to_go_on([] {
    Job one = job();
    one.training = std::make_shared<data::PrefetchLoader>(
        one.training, data::PrefetchOptions{.workers = 2, .depth = 3});
    return one;
  });
}

TEST(Resume, WithMaxStepsInTheMiddleOfAnEpoch) {
  expect_to_go_on([] {
    Job one = job();
    one.options.epochs = 5;
    one.options.max_steps = 8;
    return one;
  });
}

// A run that ended after 6 steps goes on to 10: as if it had been told so at the start.
TEST(Resume, GoesOnWithMoreStepsThanItWasStartedWith) {
  const auto make = [](int64_t steps) {
    Job one = job();
    one.options.epochs = 5;
    one.options.max_steps = steps;
    return one;
  };
  const auto begin = [&](int64_t steps) {
    Job one = make(steps);
    start_alike(one.network.module);
    return one;
  };
  const Outcome whole = train(begin(10)), part = train(begin(6));
  const Outcome rest = train(make(10), &part.state);
  expect_same(whole.state, rest.state);
}

// Two trainers take turns, and one of them is taken down and built anew between two turns. Who
// trains in turns keeps the random numbers of the trainers apart.
TEST(Resume, InTurnsWithAnother) {
  const auto make = [](const char* precision) {
    Job one = job(precision);
    one.options.accumulate = 2;
    return one;
  };
  const auto begin = [&](const char* precision) {
    Job one = make(precision);
    start_alike(one.network.module);
    return one;
  };
  const Outcome whole = train(begin("bf16"));
  Job other_job = begin("fp32");
  Trainer other(other_job.network, other_job.options);
  Trainer::Parts others(other, *other_job.training, other_job.validation.get());
  Job first = begin("bf16");
  auto trainer = std::make_unique<Trainer>(first.network, first.options);
  auto parts = std::make_unique<Trainer::Parts>(*trainer, *first.training, first.validation.get());
  torch::manual_seed(99);
  std::vector<Job> jobs;
  for (int turn = 0; turn < 10; ++turn) {
    const bool goes_on = parts->advance(1);
    const checkpoint::Checkpoint state = copy_of(parts->checkpoint());
    if (!goes_on) break;
    others.advance(1);
    jobs.push_back(make("bf16"));
    trainer = std::make_unique<Trainer>(jobs.back().network, jobs.back().options);
    trainer->resume(state);
    parts = std::make_unique<Trainer::Parts>(*trainer, *jobs.back().training,
                                             jobs.back().validation.get());
  }
  EXPECT_FALSE(parts->advance(1));
  expect_same(whole.state, copy_of(parts->checkpoint()));
}

}  // namespace
}  // namespace demi::train
