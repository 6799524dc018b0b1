// Second fits, resumed ones, skipped steps, and what a fit is called within. Truth: the loop that
// one would write by hand.
#include <ATen/autocast_mode.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <map>
#include <thread>

#include "demi/autocast/autocast.h"
#include "demi/optim/sgd.h"
#include "demi/train/names.h"
#include "demi/train/resume_testing.h"
#include "demi/train/small_testing.h"
#include "demi/train/trainer.h"

namespace demi::train {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using testing::Rows;
using testing::sgd;
using testing::Small;
using testing::with_a_shared_layer;
namespace F = torch::nn::functional;

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

TEST(OddMoment, TheHistoryHasTheRatesOfATable) {
  Small s;
  auto optimizer = std::make_shared<optim::SGD>(s.model->parameters(), optim::SGDOptions(7));
  optimizer->set_scheduled_rates(0, {0.5, 0.25, 0.125});
  Trainer trainer = s.trainer({.epochs = 2, .optimizers = {optimizer}});
  std::vector<double> rates;
  for (const StepMetrics& step : trainer.fit(s.loader()).steps) rates.push_back(step.learning_rate);
  EXPECT_EQ(rates, (std::vector<double>{0.5, 0.25, 0.125, 0.125}));
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

// Before the step that it reads is counted to its end.
TEST(OddMoment, ACallbackMayTakeACheckpointAfterAnUpdate) {
  struct Takes : Callback {
    Trainer::Parts* parts = nullptr;
    std::vector<double> steps;
    void after_update(const StepView&) override {
      steps.push_back(parts->checkpoint().numbers.at("progress").at("step"));
    }
  };
  Small s, plain;
  Trainer trainer = s.trainer({.epochs = 2});
  const auto takes = std::make_shared<Takes>();
  trainer.add(takes);
  const Rows rows = s.loader();
  Trainer::Parts parts(trainer, rows);
  takes->parts = &parts;
  while (parts.advance(100)) {
  }
  EXPECT_EQ(takes->steps, (std::vector<double>{1, 2, 3, 4}));
  const History whole = plain.trainer({.epochs = 2}).fit(rows);
  ASSERT_EQ(parts.history().steps.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(parts.history().steps[i].loss, whole.steps[i].loss);
  EXPECT_TRUE(torch::equal(s.weight(), plain.weight()));
}

// The Trainer's next fit makes schedules of its own.
TEST(OddMoment, APartKeepsItsSchedule) {
  const Small s;
  TrainerOptions options{.epochs = 2};
  options.schedule = optim::lr::exponential(0.5);
  Trainer trainer = s.trainer(options);
  const Rows rows = s.loader();
  Trainer::Parts parts(trainer, rows);
  parts.advance(1);
  const Trainer::Parts others(trainer, rows);
  while (parts.advance(100)) {
  }
  ASSERT_EQ(parts.history().steps.size(), 4U);
  EXPECT_DOUBLE_EQ(parts.history().steps[2].learning_rate, 0.1 * 0.25);
  EXPECT_DOUBLE_EQ(parts.history().steps[3].learning_rate, 0.1 * 0.125);
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
  const auto resumed_for = [&](int64_t epochs, std::vector<Metric> metrics) {
    Trainer trainer = s.trainer({.epochs = epochs, .metrics = std::move(metrics)});
    if (!saved.model.empty()) trainer.resume(saved);
    Trainer::Parts parts(trainer, rows, &rows);
    while (parts.advance(100)) {
    }
    saved = testing::copy_of(parts.checkpoint());
    return parts.history();
  };
  resumed_for(1, {a});
  resumed_for(2, {b, a});
  const History history = resumed_for(3, {b});
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
