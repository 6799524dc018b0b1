#include "demi/schedule/lr_scheduler.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <memory>

#include "demi/core/error.h"
#include "demi/optim/trajectories_testing.h"
#include "demi/schedule/lr_schedule.h"

namespace demi::optim::lr {
namespace {

constexpr double kBase = 0.1;

torch::optim::SGD some_sgd() {
  return torch::optim::SGD(std::vector<at::Tensor>{torch::zeros(1, torch::requires_grad())},
                           torch::optim::SGDOptions(kBase).momentum(0.9));
}

TEST(Scheduler, OneCycleMovesRateAndMomentumAsPyTorch) {
  const std::vector<std::pair<const char*, OneCycleOptions>> variants{
      {"one_cycle", {.total_steps = 40, .max_lr = 0.5}},
      {"one_cycle_linear",
       {.total_steps = 40,
        .max_lr = 0.5,
        .pct_start = 0.25,
        .anneal = Anneal::kLinear,
        .div_factor = 10,
        .final_div_factor = 100,
        .base_momentum = 0.8,
        .max_momentum = 0.9}},
      {"one_cycle_three_phase", {.total_steps = 40, .max_lr = 0.5, .three_phase = true}}};
  for (const auto& [name, options] : variants) {
    auto sgd = some_sgd();
    auto& group = static_cast<torch::optim::SGDOptions&>(sgd.param_groups()[0].options());
    Scheduler schedule = one_cycle_scheduler(sgd, options);
    const auto& expected = trajectories().at("schedules").at(name);
    for (size_t t = 0; t < expected.at("lr").size(); ++t) {
      EXPECT_NEAR(group.lr(), expected["lr"][t].get<double>(), 1e-12) << name << " at " << t;
      EXPECT_NEAR(group.momentum(), expected["momentum"][t].get<double>(), 1e-12)
          << name << " at " << t;
      schedule.step();
    }
  }
}

TEST(Plateau, FollowsPyTorch) {
  for (const auto& run : trajectories().at("schedules").at("plateau")) {
    const auto& given = run.at("options");
    auto sgd = some_sgd();
    Plateau plateau(sgd, {.better = given.contains("mode") ? Better::kHigher : Better::kLower,
                          .factor = given.at("factor"),
                          .patience = given.at("patience"),
                          .threshold = given.value("threshold", 1e-4),
                          .threshold_mode = given.contains("threshold_mode") ? Threshold::kAbsolute
                                                                             : Threshold::kRelative,
                          .cooldown = given.value("cooldown", 0),
                          .min_lr = given.value("min_lr", 0.0)});
    for (size_t t = 0; t < run.at("metrics").size(); ++t) {
      if (t == 7) {  // save and load in the middle
        const StateDict saved = plateau.state_dict();
        plateau.step(5.0);
        plateau.load_state_dict(saved);
        sgd.param_groups()[0].options().set_lr(run.at("lr")[6]);
      }
      plateau.step(run.at("metrics")[t]);
      EXPECT_NEAR(sgd.param_groups()[0].options().get_lr(), run.at("lr")[t].get<double>(), 1e-12)
          << given << " at " << t;
    }
  }
}

// ReduceLROnPlateau: relative progress is beyond best x (1 - threshold), or x (1 + threshold).
TEST(Plateau, TakesItsThresholdRelativeToTheBest) {
  for (const bool lower : {true, false}) {
    auto sgd = some_sgd();
    Plateau plateau(sgd, {.better = lower ? Better::kLower : Better::kHigher, .threshold = 0.1});
    const auto best_after = [&](double metric) {
      plateau.step(metric);
      return plateau.best();
    };
    EXPECT_EQ(best_after(100), 100);
    EXPECT_EQ(best_after(lower ? 90.5 : 109.5), 100);
    EXPECT_EQ(best_after(lower ? 89.5 : 110.5), lower ? 89.5 : 110.5);
    EXPECT_EQ(best_after(std::nan("")), lower ? 89.5 : 110.5);  // no progress
  }
}

TEST(Plateau, DoesNotMakeAChangeUnderEps) {
  auto sgd = some_sgd();
  auto& options = sgd.param_groups()[0].options();
  Plateau plateau(sgd, {.factor = 0.5, .patience = 0, .eps = 0.03});
  std::vector<double> rates;
  for (int i = 0; i < 4; ++i) {
    plateau.step(1);
    rates.push_back(options.get_lr());
  }
  // The first metric is progress; 0.1 to 0.05 is a change of 0.05; 0.05 to 0.025 is one of 0.025.
  EXPECT_EQ(rates, (std::vector<double>{0.1, 0.05, 0.05, 0.05}));
}

TEST(Plateau, GoesOnFromItsState) {
  const PlateauOptions options{.factor = 0.5, .patience = 2, .cooldown = 2};
  auto sgd = some_sgd();
  Plateau whole(sgd, options);
  // Metrics that never get better: reduced by the fourth (3 > 2 bad ones), then 2 of cooldown, then
  // by the third bad one after that.
  const std::vector<double> expected{0.1,  0.1,  0.1,   0.05,  0.05,  0.05,
                                     0.05, 0.05, 0.025, 0.025, 0.025, 0.025};
  for (size_t broken_at = 0; broken_at < expected.size(); ++broken_at) {
    auto other = some_sgd();
    auto plateau = std::make_unique<Plateau>(other, options);
    for (size_t t = 0; t < expected.size(); ++t) {
      plateau->step(t == 0 ? 1.0 : 2.0);
      EXPECT_DOUBLE_EQ(other.param_groups()[0].options().get_lr(), expected[t])
          << broken_at << " at " << t;
      if (t != broken_at) continue;
      auto loaded = std::make_unique<Plateau>(other, options);
      loaded->load_state_dict(plateau->state_dict());
      EXPECT_EQ(loaded->state_dict(), plateau->state_dict());
      EXPECT_EQ(loaded->state_dict().at("last_epoch"), static_cast<double>(t + 1));
      plateau = std::move(loaded);
    }
  }
  EXPECT_THROW(whole.load_state_dict({{"best", 1}}), UsageError);
}

// In another process the optimizer begins with the rate of the program.
TEST(Plateau, BringsItsRatesAlong) {
  auto sgd = some_sgd(), other = some_sgd();
  Plateau plateau(sgd, {.patience = 0}), loaded(other, {.patience = 0});
  for (const double metric : {1.0, 2.0}) plateau.step(metric);
  const StateDict state = plateau.state_dict();
  EXPECT_DOUBLE_EQ(state.at("_last_lr.0"), 0.01);
  loaded.load_state_dict(state);
  EXPECT_DOUBLE_EQ(other.param_groups()[0].options().get_lr(), 0.01);
  StateDict earlier = state;  // an earlier version saved none
  earlier.erase("_last_lr.0");
  loaded.load_state_dict(earlier);
  EXPECT_DOUBLE_EQ(other.param_groups()[0].options().get_lr(), 0.01);
  for (const auto& [key, value] : StateDict{{"_last_lr.0", -1}, {"_last_lr.1", 0.5}}) {
    StateDict broken = state;
    broken["best"] = 7;
    broken[key] = value;
    EXPECT_THROW(loaded.load_state_dict(broken), UsageError) << key;
    EXPECT_EQ(loaded.state_dict(), state);
  }
}

TEST(Scheduler, ARefusedMomentumLeavesTheRates) {
  torch::optim::Adagrad adagrad({torch::zeros(1)}, torch::optim::AdagradOptions(0.1));
  EXPECT_THROW(one_cycle_scheduler(adagrad, {.total_steps = 10, .max_lr = 0.5}), UsageError);
  EXPECT_EQ(adagrad.param_groups()[0].options().get_lr(), 0.1);
}

TEST(Scheduler, ASkippedStepDoesNotAdvanceWhenAsked) {
  auto sgd = some_sgd();
  Scheduler schedule(sgd, exponential(0.5));
  schedule.step(StepResult(&sgd, StepResult::Numbers{.found_inf = 1}, {}));
  EXPECT_DOUBLE_EQ(sgd.param_groups()[0].options().get_lr(), 0.1);
  schedule.step(StepResult(&sgd, StepResult::Numbers{.found_inf = 0}, {}));
  EXPECT_DOUBLE_EQ(sgd.param_groups()[0].options().get_lr(), 0.05);
}

TEST(Scheduler, StateGoesOnWhereItWas) {
  auto sgd = some_sgd();
  Scheduler schedule(sgd, cosine(10));
  for (int i = 0; i < 4; ++i) schedule.step();
  const StateDict saved = schedule.state_dict();
  EXPECT_EQ(saved, (StateDict{{"last_epoch", 4}, {"base_lrs.0", 0.1}}));
  const auto rate = schedule.get_last_lr();

  auto other = some_sgd();
  other.param_groups()[0].options().set_lr(7);
  Scheduler loaded(other, cosine(10));
  loaded.load_state_dict(saved);
  EXPECT_EQ(loaded.get_last_lr(), rate);
  EXPECT_THROW(loaded.load_state_dict({{"last_epoch", 4}}), UsageError);
  EXPECT_EQ(loaded.state_dict(), saved);
}

TEST(Scheduler, EachGroupKeepsItsOwnBaseAlsoWhenAddedLater) {
  auto sgd = some_sgd();
  Scheduler schedule(sgd, exponential(0.5));
  torch::optim::OptimizerParamGroup group({torch::zeros(1, torch::requires_grad())},
                                          std::make_unique<torch::optim::SGDOptions>(0.8));
  sgd.add_param_group(group);
  schedule.step();
  EXPECT_EQ(schedule.get_last_lr(), (std::vector<double>{0.05, 0.4}));
}

// As a program does that unfreezes a part between two steps. A state of an earlier version lacks
// the group's base: the group has its own rate.
TEST(Scheduler, ASavedStateHasTheBaseOfAGroupThatWasJustAdded) {
  const auto add_group = [](torch::optim::Optimizer& to) {
    to.add_param_group({{torch::zeros(1, torch::requires_grad())},
                        std::make_unique<torch::optim::SGDOptions>(0.8)});
  };
  auto sgd = some_sgd();
  Scheduler schedule(sgd, exponential(0.5));
  schedule.step();
  add_group(sgd);
  const StateDict saved = schedule.state_dict();
  EXPECT_EQ(saved, (StateDict{{"last_epoch", 1}, {"base_lrs.0", 0.1}, {"base_lrs.1", 0.8}}));
  for (const StateDict& state : {saved, StateDict{{"last_epoch", 1}, {"base_lrs.0", 0.1}}})
    for (const bool adds_first : {true, false}) {
      auto other = some_sgd();
      if (adds_first) add_group(other);
      Scheduler loaded(other, exponential(0.5));
      if (!adds_first) add_group(other);
      Scheduler::check_state_dict(state, 2, exponential(0.5));
      loaded.load_state_dict(state);
      loaded.step();
      EXPECT_EQ(loaded.get_last_lr(), (std::vector<double>{0.025, 0.2})) << adds_first;
    }
}

TEST(Scheduler, WrongArgumentsAreNamed) {
  EXPECT_THROW(step(0), UsageError);
  EXPECT_THROW(multi_step({3, 2}), UsageError);
  EXPECT_THROW(cosine(0), UsageError);
  EXPECT_THROW(linear(0), UsageError);
  EXPECT_THROW(polynomial(0), UsageError);
  EXPECT_THROW(sequential({exponential(1)}, {1}), UsageError);
  EXPECT_THROW(one_cycle({}), UsageError);
  auto sgd = some_sgd();
  EXPECT_THROW(Scheduler(sgd, nullptr), UsageError);
  EXPECT_THROW(Plateau(sgd, {.factor = 1}), UsageError);
  EXPECT_THROW(Plateau(sgd, {.patience = -1}), UsageError);
  EXPECT_THROW(Plateau(sgd, {.threshold = std::nan("")}), UsageError);
  EXPECT_THROW(Plateau(sgd, {.cooldown = -1}), UsageError);
  EXPECT_THROW(Plateau(sgd, {.min_lr = -1}), UsageError);
  EXPECT_THROW(Plateau(sgd, {.eps = std::nan("")}), UsageError);
  torch::optim::Adagrad adagrad({torch::zeros(1, torch::requires_grad())});
  EXPECT_THROW(set_momentum(adagrad.param_groups()[0].options(), 0.5), UsageError);
}

TEST(Scheduler, AStateThatCannotBeIsRefusedWhole) {
  torch::optim::SGD sgd({torch::zeros(1)}, 0.1);
  Scheduler schedule(sgd, cosine(10));
  schedule.step();
  const StateDict before = schedule.state_dict();
  const double rate = schedule.get_last_lr()[0];
  for (const char* key : {"last_epoch", "base_lrs.0"}) {
    for (const double bad : {std::nan(""), -5.0, 1e300, 0.5}) {
      if (key[0] == 'b' && (bad == 0.5 || bad == 1e300)) continue;  // rates
      StateDict broken = before;
      broken["base_lrs.0"] = 7;
      broken[key] = bad;
      EXPECT_THROW(schedule.load_state_dict(broken), UsageError) << key << bad;
    }
  }
  StateDict more = before;
  more["base_lrs.1"] = 0.1;
  EXPECT_THROW(schedule.load_state_dict(more), UsageError);
  EXPECT_EQ(schedule.state_dict(), before);
  EXPECT_EQ(schedule.get_last_lr()[0], rate);
  Plateau plateau(sgd);
  plateau.step(1);
  const StateDict known = plateau.state_dict();
  for (const char* key : {"num_bad_epochs", "cooldown_counter", "last_epoch", "best"}) {
    StateDict broken = known;
    broken["last_epoch"] = 9;
    broken[key] = std::nan("");
    EXPECT_THROW(plateau.load_state_dict(broken), UsageError) << key;
    EXPECT_EQ(plateau.state_dict(), known);
  }
}

TEST(Scheduler, AStateBeyondTheCycleIsRefusedWhole) {
  torch::optim::SGD sgd({torch::zeros(1)}, torch::optim::SGDOptions(0.1).momentum(0.9));
  Scheduler schedule = one_cycle_scheduler(sgd, {.total_steps = 10, .max_lr = 0.5});
  StateDict state = schedule.state_dict();
  const StateDict before = state;
  state["last_epoch"] = 1000;
  EXPECT_THROW(schedule.load_state_dict(state), UsageError);
  EXPECT_EQ(schedule.state_dict(), before);
}

// As PyTorch's initial_lr: a second LambdaLR of the same optimizer begins anew, not from the rate
// that the first has decayed.
TEST(Scheduler, BeginsAnewFromTheBaseRatesOfAnother) {
  auto sgd = some_sgd();
  Scheduler first(sgd, cosine(10));
  for (int i = 0; i < 10; ++i) first.step();
  EXPECT_NEAR(sgd.param_groups()[0].options().get_lr(), 0, 1e-12);
  EXPECT_EQ(first.base_lrs(), std::vector<double>{kBase});
  Scheduler second(sgd, cosine(10), nullptr, first.base_lrs());
  EXPECT_EQ(sgd.param_groups()[0].options().get_lr(), kBase);
  second.step();
  EXPECT_NEAR(second.get_last_lr()[0], kBase * (1 + std::cos(M_PI / 10)) / 2, 1e-12);
  EXPECT_THROW(Scheduler(sgd, cosine(10), nullptr, {1, 1}), UsageError);
  EXPECT_THROW(Scheduler(sgd, cosine(10), nullptr, {-1}), UsageError);
  EXPECT_THROW(Scheduler(sgd, cosine(10), nullptr, {std::nan("")}), UsageError);
}

TEST(Scheduler, AMomentumAloneLeavesTheRateToTheUser) {
  auto sgd = some_sgd();
  auto& options = static_cast<torch::optim::SGDOptions&>(sgd.param_groups()[0].options());
  const Schedule momentum = [](int64_t t, double) { return t == 0 ? 0.5 : 0.25; };
  Scheduler schedule(sgd, nullptr, momentum);
  EXPECT_EQ(options.momentum(), 0.5);
  options.lr(0.75);
  schedule.step();
  EXPECT_EQ(options.momentum(), 0.25);
  EXPECT_EQ(options.lr(), 0.75);
  EXPECT_EQ(schedule.get_last_lr()[0], 0.75);
  const StateDict state = schedule.state_dict();
  Scheduler::check_state_dict(state, 1, nullptr, momentum);
  schedule.load_state_dict(state);
  EXPECT_EQ(options.lr(), 0.75);
  EXPECT_THROW(Scheduler(sgd, nullptr), UsageError);
}

}  // namespace
}  // namespace demi::optim::lr
