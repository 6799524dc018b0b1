#include "demi/schedule/lr_scheduler.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "demi/core/error.h"
#include "demi/optim/rule_options.h"

namespace demi::optim::lr {

namespace {

bool is_rate(double rate) { return rate >= 0 && std::isfinite(rate); }

std::vector<double> rates_of(const torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

std::string base_key(size_t group) { return "base_lrs." + std::to_string(group); }

}  // namespace

Scheduler::Scheduler(torch::optim::Optimizer& optimizer, Schedule schedule, Schedule momentum,
                     std::vector<double> base_lrs)
    : optimizer_(optimizer),
      schedule_(std::move(schedule)),
      momentum_(std::move(momentum)),
      base_lrs_(base_lrs.empty() ? rates_of(optimizer) : std::move(base_lrs)) {
  constexpr auto kWhere = "optim.lr.Scheduler";
  if (!schedule_ && !momentum_)
    throw UsageError({.where = kWhere, .what = "the schedule is empty"});
  const size_t groups = optimizer_.param_groups().size();
  if (base_lrs_.size() != groups)
    throw UsageError({.where = kWhere,
                      .what = "base_lrs has another number of rates than there are groups",
                      .seen = std::to_string(base_lrs_.size()),
                      .accepted = std::to_string(groups) + ", one a parameter group"});
  for (const double rate : base_lrs_)
    if (!is_rate(rate))
      throw UsageError({.where = kWhere,
                        .what = "a base learning rate is out of range",
                        .seen = std::to_string(rate),
                        .accepted = "0 or more, finite"});
  apply();
}

void Scheduler::step() {
  ++step_;
  apply();
}

void Scheduler::step(const StepResult& result) {
  if (!result.skipped()) step();
}

// A group added later starts from the rate it came with.
std::vector<double> Scheduler::bases_of_all_groups() const {
  std::vector<double> bases = base_lrs_;
  const auto& groups = optimizer_.param_groups();
  while (bases.size() < groups.size()) bases.push_back(groups[bases.size()].options().get_lr());
  return bases;
}

void Scheduler::apply() {
  auto& groups = optimizer_.param_groups();
  base_lrs_ = bases_of_all_groups();
  std::vector<double> rates = rates_of(optimizer_);
  if (schedule_)
    for (size_t i = 0; i < rates.size(); ++i) rates[i] = schedule_(step_, base_lrs_[i]);
  const double momentum = momentum_ ? momentum_(step_, 0) : 0;
  if (momentum_)
    for (auto& group : groups) set_momentum(*group.options().clone(), momentum);  // may be refused
  last_lr_ = rates;
  for (size_t i = 0; i < groups.size(); ++i) {
    if (schedule_) groups[i].options().set_lr(rates[i]);
    if (momentum_) set_momentum(groups[i].options(), momentum);
  }
}

StateDict Scheduler::state_dict() const {
  StateDict state{{"last_epoch", static_cast<double>(step_)}};
  const std::vector<double> bases = bases_of_all_groups();
  for (size_t i = 0; i < bases.size(); ++i) state[base_key(i)] = bases[i];
  return state;
}

namespace {

struct ReadState {
  int64_t step;
  std::vector<double> base_lrs;
};

// May hold fewer base rates than there are groups: earlier versions did not save that of a group
// which was added since the last step.
ReadState read_scheduler(const StateDict& state, size_t groups) {
  constexpr auto kWhere = "optim.lr.load_state_dict";
  const auto is_base = [](const auto& item) { return item.first.starts_with("base_lrs."); };
  const auto saved = static_cast<size_t>(std::ranges::count_if(state, is_base));
  std::vector<double> base_lrs;
  for (size_t i = 0; i < std::min(std::max<size_t>(saved, 1), groups); ++i) {
    const std::string key = base_key(i);
    base_lrs.push_back(state_value(state, key, kWhere));
    if (!is_rate(base_lrs.back()))
      throw UsageError({.where = kWhere,
                        .what = key + " is no learning rate",
                        .seen = std::to_string(base_lrs.back()),
                        .accepted = "0 or more, finite",
                        .advice = "load a state as state_dict() gave it"});
  }
  const std::string one_more = base_key(groups);
  if (state.contains(one_more))
    throw UsageError({.where = kWhere,
                      .what = "the state is that of more parameter groups",
                      .seen = one_more,
                      .accepted = std::to_string(groups) + " groups"});
  return {state_count(state, "last_epoch", kWhere), std::move(base_lrs)};
}

}  // namespace

void Scheduler::check_state_dict(const StateDict& state, size_t groups, const Schedule& schedule,
                                 const Schedule& momentum) {
  const ReadState read = read_scheduler(state, groups);
  if (schedule)
    for (const double base : read.base_lrs) schedule(read.step, base);  // may throw
  if (momentum) momentum(read.step, 0);
}

void Scheduler::check_state_dict(const StateDict& state) const {
  check_state_dict(state, optimizer_.param_groups().size(), schedule_, momentum_);
}

void Scheduler::load_state_dict(const StateDict& state) {
  check_state_dict(state);
  const ReadState read = read_scheduler(state, optimizer_.param_groups().size());
  step_ = read.step;
  base_lrs_ = bases_of_all_groups();
  std::ranges::copy(read.base_lrs, base_lrs_.begin());
  apply();
}

Scheduler one_cycle_scheduler(torch::optim::Optimizer& optimizer, const OneCycleOptions& options) {
  return {optimizer, one_cycle(options), one_cycle_momentum(options)};
}

Plateau::Plateau(torch::optim::Optimizer& optimizer, PlateauOptions options)
    : optimizer_(optimizer),
      options_(options),
      best_(options.better == Better::kLower ? std::numeric_limits<double>::infinity()
                                             : -std::numeric_limits<double>::infinity()) {
  const auto require = [](bool accepted, const char* option, double seen, const char* range) {
    if (accepted) return;
    throw UsageError({.where = "optim.lr.Plateau",
                      .what = std::string(option) + " is out of range",
                      .seen = std::to_string(seen),
                      .accepted = range});
  };
  const auto require_positive = [&](const char* option, double seen) {
    require(seen >= 0 && std::isfinite(seen), option, seen, "0 or more, finite");
  };
  require(options_.factor > 0 && options_.factor < 1, "factor", options_.factor,
          "above 0, below 1");
  require_positive("patience", static_cast<double>(options_.patience));
  require_positive("cooldown", static_cast<double>(options_.cooldown));
  require_positive("threshold", options_.threshold);
  require_positive("min_lr", options_.min_lr);
  require_positive("eps", options_.eps);
}

bool Plateau::is_progress(double metric) const {
  const double sign = options_.better == Better::kLower ? -1 : 1;
  const bool relative = options_.threshold_mode == Threshold::kRelative;
  const double bar =
      relative ? best_ * (1 + sign * options_.threshold) : best_ + sign * options_.threshold;
  return options_.better == Better::kLower ? metric < bar : metric > bar;
}

void Plateau::step(double metric) {
  ++calls_;
  if (is_progress(metric)) {
    best_ = metric;
    bad_calls_ = 0;
  } else {
    ++bad_calls_;
  }
  if (cooldown_left_ > 0) {
    --cooldown_left_;
    bad_calls_ = 0;
  }
  if (bad_calls_ <= options_.patience) return;
  reduce();
  cooldown_left_ = options_.cooldown;
  bad_calls_ = 0;
}

void Plateau::reduce() {
  for (auto& group : optimizer_.param_groups()) {
    const double now = group.options().get_lr();
    const double next = std::max(now * options_.factor, options_.min_lr);
    if (now - next > options_.eps) group.options().set_lr(next);
  }
}

namespace {

std::string rate_key(std::size_t group) { return "_last_lr." + std::to_string(group); }

/// The rates in the state; none in a state of an earlier version, which held no rates.
std::vector<double> rates_in(const StateDict& state, std::size_t groups, const char* where) {
  std::vector<double> rates;
  if (!state.contains(rate_key(0))) return rates;
  for (std::size_t g = 0; g < groups; ++g) {
    rates.push_back(state_value(state, rate_key(g), where));
    if (!is_rate(rates.back()))
      throw UsageError({.where = where,
                        .what = rate_key(g) + " is no learning rate",
                        .seen = std::to_string(rates.back()),
                        .accepted = "0 or more, finite",
                        .advice = "load a state as state_dict() gave it"});
  }
  if (state.contains(rate_key(groups)))
    throw UsageError({.where = where,
                      .what = "the state is that of more parameter groups",
                      .seen = rate_key(groups),
                      .accepted = std::to_string(groups) + " groups"});
  return rates;
}

}  // namespace

StateDict Plateau::state_dict() const {
  StateDict state{{"best", best_},
                  {"num_bad_epochs", static_cast<double>(bad_calls_)},
                  {"cooldown_counter", static_cast<double>(cooldown_left_)},
                  {"last_epoch", static_cast<double>(calls_)}};
  const std::vector<double> rates = rates_of(optimizer_);
  for (std::size_t g = 0; g < rates.size(); ++g) state[rate_key(g)] = rates[g];
  return state;
}

void Plateau::load_state_dict(const StateDict& state) {
  constexpr auto kWhere = "optim.lr.Plateau.load_state_dict";
  const auto count = [&](const char* key) { return state_count(state, key, kWhere); };
  const double best = state_value(state, "best", kWhere);
  if (std::isnan(best))
    throw UsageError({.where = kWhere,
                      .what = "best is no metric",
                      .seen = "nan",
                      .accepted = "a number, or an infinity before the first call"});
  const int64_t bad = count("num_bad_epochs"), cooldown = count("cooldown_counter"),
                calls = count("last_epoch");
  auto& groups = optimizer_.param_groups();
  const std::vector<double> rates = rates_in(state, groups.size(), kWhere);
  for (std::size_t g = 0; g < rates.size(); ++g) groups[g].options().set_lr(rates[g]);
  best_ = best;
  bad_calls_ = bad;
  cooldown_left_ = cooldown;
  calls_ = calls;
}

namespace {

template <typename Options>
bool set_beta1(torch::optim::OptimizerOptions& options, double momentum) {
  auto* adam = dynamic_cast<Options*>(&options);
  if (adam) adam->betas({momentum, std::get<1>(adam->betas())});
  return adam;
}

template <typename Options>
bool set_plain(torch::optim::OptimizerOptions& options, double momentum) {
  auto* sgd = dynamic_cast<Options*>(&options);
  if (sgd) sgd->momentum(momentum);
  return sgd;
}

}  // namespace

void set_momentum(torch::optim::OptimizerOptions& options, double momentum) {
  auto* ours = dynamic_cast<ScheduledMomentum*>(&options);
  const bool done = (ours && ours->set_momentum(momentum)) ||
                    set_plain<torch::optim::SGDOptions>(options, momentum) ||
                    set_plain<torch::optim::RMSpropOptions>(options, momentum) ||
                    set_beta1<torch::optim::AdamOptions>(options, momentum) ||
                    set_beta1<torch::optim::AdamWOptions>(options, momentum);
  if (!done)
    throw UsageError({.where = "optim.lr.set_momentum",
                      .what = "this optimizer has neither momentum nor beta1",
                      .accepted = "SGD, RMSprop, Adam, AdamW and demi's optimizers"});
}

}  // namespace demi::optim::lr
