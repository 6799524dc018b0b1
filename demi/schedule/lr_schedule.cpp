#include "demi/schedule/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "demi/core/error.h"

namespace demi::optim::lr {
namespace {

void require(bool accepted, const char* where, const char* what, double seen, const char* range) {
  if (accepted) return;
  throw UsageError({.where = where,
                    .what = std::string(what) + " is out of range",
                    .seen = std::to_string(seen),
                    .accepted = range});
}

void require_steps(int64_t steps, const char* where, const char* what) {
  require(steps >= 1, where, what, static_cast<double>(steps), "1 step or more");
}

void require_ascending(const std::vector<int64_t>& milestones, const char* where) {
  const bool ascending = std::is_sorted(milestones.begin(), milestones.end());
  require(ascending, where, "the order of milestones", 0, "ascending steps");
}

void require_at_least_0(double value, const char* where, const char* what) {
  require(value >= 0 && std::isfinite(value), where, what, value, "0 or more, finite");
}

/// Half a cosine from `start` at 0 to `end` at 1.
double half_cosine(double start, double end, double part) {
  return end + (start - end) / 2 * (1 + std::cos(std::numbers::pi * part));
}

}  // namespace

Schedule step(int64_t step_size, double gamma) {
  require_steps(step_size, "optim.lr.step", "step_size");
  require_at_least_0(gamma, "optim.lr.step", "gamma");
  return [=](int64_t t, double base) {
    const int64_t whole_steps = t / step_size;
    return base * std::pow(gamma, static_cast<double>(whole_steps));
  };
}

Schedule multi_step(std::vector<int64_t> milestones, double gamma) {
  require_ascending(milestones, "optim.lr.multi_step");
  require_at_least_0(gamma, "optim.lr.multi_step", "gamma");
  return [milestones = std::move(milestones), gamma](int64_t t, double base) {
    const auto reached =
        std::upper_bound(milestones.begin(), milestones.end(), t) - milestones.begin();
    return base * std::pow(gamma, static_cast<double>(reached));
  };
}

Schedule exponential(double gamma) {
  require_at_least_0(gamma, "optim.lr.exponential", "gamma");
  return [=](int64_t t, double base) { return base * std::pow(gamma, static_cast<double>(t)); };
}

Schedule cosine(int64_t t_max, double eta_min) {
  require_steps(t_max, "optim.lr.cosine", "t_max");
  require_at_least_0(eta_min, "optim.lr.cosine", "eta_min");
  return [=](int64_t t, double base) {
    return half_cosine(base, eta_min, static_cast<double>(t) / static_cast<double>(t_max));
  };
}

Schedule cosine_warm_restarts(int64_t t_0, int64_t t_mult, double eta_min) {
  require_steps(t_0, "optim.lr.cosine_warm_restarts", "t_0");
  require_steps(t_mult, "optim.lr.cosine_warm_restarts", "t_mult");
  require_at_least_0(eta_min, "optim.lr.cosine_warm_restarts", "eta_min");
  return [=](int64_t t, double base) {
    int64_t length = t_0;
    if (t_mult == 1) t %= t_0;
    while (t >= length) {
      t -= length;
      length *= t_mult;
    }
    return half_cosine(base, eta_min, static_cast<double>(t) / static_cast<double>(length));
  };
}

Schedule linear(double start_factor, double end_factor, int64_t total_steps) {
  require(start_factor > 0 && start_factor <= 1, "optim.lr.linear", "start_factor", start_factor,
          "above 0, up to 1");
  require(end_factor >= 0 && end_factor <= 1, "optim.lr.linear", "end_factor", end_factor,
          "0 to 1");
  require_steps(total_steps, "optim.lr.linear", "total_steps");
  return [=](int64_t t, double base) {
    const double part =
        static_cast<double>(std::min(t, total_steps)) / static_cast<double>(total_steps);
    return base * (start_factor + (end_factor - start_factor) * part);
  };
}

Schedule polynomial(int64_t total_steps, double power) {
  require_steps(total_steps, "optim.lr.polynomial", "total_steps");
  require_at_least_0(power, "optim.lr.polynomial", "power");
  return [=](int64_t t, double base) {
    const double part =
        static_cast<double>(std::min(t, total_steps)) / static_cast<double>(total_steps);
    return base * std::pow(1 - part, power);
  };
}

Schedule lambda(std::function<double(int64_t step)> factor) {
  require(factor != nullptr, "optim.lr.lambda", "the function", 0, "a callable");
  return [factor = std::move(factor)](int64_t t, double base) { return base * factor(t); };
}

Schedule sequential(std::vector<Schedule> schedules, std::vector<int64_t> milestones) {
  require(!schedules.empty() && milestones.size() + 1 == schedules.size(), "optim.lr.sequential",
          "the number of milestones", static_cast<double>(milestones.size()),
          "one less than schedules");
  require_ascending(milestones, "optim.lr.sequential");
  return [schedules = std::move(schedules), milestones = std::move(milestones)](int64_t t,
                                                                                double base) {
    const auto at = std::upper_bound(milestones.begin(), milestones.end(), t) - milestones.begin();
    return schedules[at](at == 0 ? t : t - milestones[at - 1], base);
  };
}

namespace {

struct Phase {
  double end_step;
  double from, to;
};

/// OneCycleLR._schedule_phases walked to `step`.
double along(const std::vector<Phase>& phases, int64_t step, Anneal anneal) {
  double start_step = 0;
  for (const Phase& phase : phases) {
    if (static_cast<double>(step) <= phase.end_step || &phase == &phases.back()) {
      const double length = phase.end_step - start_step;
      const double part =
          length > 0 ? std::min((static_cast<double>(step) - start_step) / length, 1.0) : 1.0;
      return anneal == Anneal::kCosine ? half_cosine(phase.from, phase.to, part)
                                       : phase.from + (phase.to - phase.from) * part;
    }
    start_step = phase.end_step;
  }
  return phases.back().to;
}

std::vector<Phase> phases_of(const OneCycleOptions& options, double first, double peak,
                             double last) {
  const auto total = static_cast<double>(options.total_steps);
  const double rise = options.pct_start * total - 1;
  if (!options.three_phase) return {{rise, first, peak}, {total - 1, peak, last}};
  return {{rise, first, peak},
          {2 * options.pct_start * total - 2, peak, first},
          {total - 1, first, last}};
}

void check(const OneCycleOptions& options, int64_t step) {
  require(step <= options.total_steps, "optim.lr.one_cycle", "the step", static_cast<double>(step),
          "0 to total_steps; a longer run needs a longer cycle");
}

void check(const OneCycleOptions& options) {
  require_steps(options.total_steps, "optim.lr.one_cycle", "total_steps");
  require(options.pct_start >= 0 && options.pct_start <= 1, "optim.lr.one_cycle", "pct_start",
          options.pct_start, "0 to 1");
  require(options.max_lr >= 0 && std::isfinite(options.max_lr), "optim.lr.one_cycle", "max_lr",
          options.max_lr, "0 (the group's own) or more, finite");
  require(options.div_factor > 0, "optim.lr.one_cycle", "div_factor", options.div_factor,
          "above 0");
  require(options.final_div_factor > 0, "optim.lr.one_cycle", "final_div_factor",
          options.final_div_factor, "above 0");
  require_at_least_0(options.base_momentum, "optim.lr.one_cycle", "base_momentum");
  require_at_least_0(options.max_momentum, "optim.lr.one_cycle", "max_momentum");
}

}  // namespace

Schedule one_cycle(OneCycleOptions options) {
  check(options);
  return [options](int64_t t, double base) {
    check(options, t);
    const double peak = options.max_lr > 0 ? options.max_lr : base;
    const double first = peak / options.div_factor;
    return along(phases_of(options, first, peak, first / options.final_div_factor), t,
                 options.anneal);
  };
}

Schedule one_cycle_momentum(OneCycleOptions options) {
  check(options);
  return [options](int64_t t, double) {
    check(options, t);
    const double high = options.max_momentum;
    return along(phases_of(options, high, options.base_momentum, high), t, options.anneal);
  };
}

}  // namespace demi::optim::lr
