#pragma once

#include <torch/optim/optimizer.h>

#include <limits>
#include <vector>

#include "demi/core/export.h"
#include "demi/core/state_dict.h"
#include "demi/schedule/lr_schedule.h"
#include "demi/step/step_result.h"

namespace demi::optim::lr {

/// Applies a schedule to the learning rates of an optimizer, which must outlive it; works with
/// every torch::optim::Optimizer. One scheduler has the rates: step() computes them from the base
/// rates and the count of steps, whatever they are at that time, so a second scheduler, a Plateau
/// or a rate that is set by hand lasts until then. One rule for several is sequential(), or a
/// product of rules in a Schedule of your own.
///
///     lr::Scheduler schedule(optimizer, lr::cosine(1000));
///     for (...) { scaler.step(optimizer); scaler.update(); schedule.step(); }
///
/// The constructor sets the rate of step 0.
class DEMI_API Scheduler {
 public:
  /// `schedule` may be empty if there is a schedule of the momentum: the rates are then not
  /// touched. `base_lrs`: one a parameter group, as base_lrs(); empty: the groups' present rates.
  /// Another scheduler of the same optimizer has decayed those: to begin anew, hand over its
  /// base_lrs() (PyTorch keeps them as initial_lr in the group). Throws UsageError for two empty
  /// schedules, another number of rates, and a rate that is negative or not finite.
  Scheduler(torch::optim::Optimizer& optimizer, Schedule schedule, Schedule momentum = nullptr,
            std::vector<double> base_lrs = {});

  /// Sets the next step's rate. Throws as the schedule: one_cycle past its last step.
  void step();

  /// Sets the next step's rate, unless the step was skipped. Waits for the device that stepped.
  void step(const StepResult& result);

  /// The present rates, one for each parameter group.
  const std::vector<double>& get_last_lr() const { return last_lr_; }
  /// The rates that the schedule starts from, one for each parameter group.
  const std::vector<double>& base_lrs() const { return base_lrs_; }
  /// The optimizer whose rates it sets.
  const torch::optim::Optimizer& optimizer() const { return optimizer_; }

  /// "last_epoch", "base_lrs.0", ...: PyTorch's names; a parameter group that was added since the
  /// last step() has its own rate. Loading sets the rates of that moment again, and throws
  /// UsageError for a state that does not fit.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);
  /// Throws UsageError if a scheduler with these schedules of an optimizer with so many parameter
  /// groups could not load the state.
  static void check_state_dict(const StateDict& state, size_t groups, const Schedule& schedule,
                               const Schedule& momentum = nullptr);
  /// Throws UsageError if this scheduler could not load the state.
  void check_state_dict(const StateDict& state) const;

 private:
  void apply();
  std::vector<double> bases_of_all_groups() const;

  torch::optim::Optimizer& optimizer_;
  Schedule schedule_, momentum_;
  int64_t step_ = 0;
  std::vector<double> base_lrs_, last_lr_;
};

/// One cycle of rate and momentum together. Throws UsageError for options out of range.
DEMI_API Scheduler one_cycle_scheduler(torch::optim::Optimizer& optimizer,
                                       const OneCycleOptions& options);

/// The better of two values of a metric.
enum class Better { kLower, kHigher };
/// Whether the threshold is a share of the best value, or a difference from it.
enum class Threshold { kRelative, kAbsolute };

/// ReduceLROnPlateau, with PyTorch's names and defaults.
struct PlateauOptions {
  /// Whether lower or higher values of the metric are better.
  Better better = Better::kLower;
  /// Multiplies the rate. Below 1.
  double factor = 0.1;
  /// Calls without progress before the rate is lowered.
  int64_t patience = 10;
  /// Least change that counts as progress.
  double threshold = 1e-4;
  /// The meaning of `threshold`: a share of the best value, or a difference from it.
  Threshold threshold_mode = Threshold::kRelative;
  /// Calls after a reduction in which nothing is counted.
  int64_t cooldown = 0;
  /// Floor of the rate.
  double min_lr = 0;
  /// Smaller changes of the rate are not made.
  double eps = 1e-8;
};

/// Lowers the learning rates when a metric has stopped getting better. Not beside a Scheduler with
/// a schedule of the rate, whose next step() sets the rates anew. Throws UsageError for options out
/// of range.
class DEMI_API Plateau {
 public:
  explicit Plateau(torch::optim::Optimizer& optimizer, PlateauOptions options = {});

  /// Call it with each new value of the metric. Lowers the rates after more than `patience` calls
  /// without progress.
  void step(double metric);

  /// The best metric so far.
  double best() const { return best_; }
  /// The state to resume from: counts, best metric and the groups' rates ("_last_lr.0", ...), by
  /// PyTorch's names. Loading sets the rates, unless a state of an earlier version has none. It
  /// throws UsageError for an incomplete dict and for another number of rates, and then changes
  /// nothing.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);

 private:
  bool is_progress(double metric) const;
  void reduce();

  torch::optim::Optimizer& optimizer_;
  PlateauOptions options_;
  double best_;
  int64_t bad_calls_ = 0, cooldown_left_ = 0, calls_ = 0;
};

/// Sets SGD's momentum or the beta1 of Adam and its kin. Throws UsageError for options that have
/// neither.
DEMI_API void set_momentum(torch::optim::OptimizerOptions& options, double momentum);

}  // namespace demi::optim::lr
