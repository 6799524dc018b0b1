#pragma once

#include <torch/optim/optimizer.h>

#include <limits>
#include <vector>

#include "demi/core/export.h"
#include "demi/core/state_dict.h"
#include "demi/schedule/lr_rule.h"
#include "demi/step/step_result.h"

namespace demi::optim::lr {

/// Applies a rule to the learning rates of an optimizer, which must outlive it; works with every
/// torch::optim::Optimizer.
///
///     lr::Scheduler schedule(optimizer, lr::cosine(1000));
///     for (...) { scaler.step(optimizer); scaler.update(); schedule.step(); }
///
/// The rate of step 0 is set at once. The base rates are those that the groups have at that moment.
class DEMI_API Scheduler {
 public:
  Scheduler(torch::optim::Optimizer& optimizer, Rule rule, Rule momentum = nullptr);

  /// The next step's rate.
  void step();

  /// The same, except that a skipped step does not advance the schedule. Reads the result: where
  /// the optimizer stepped on a device, that waits for it.
  void step(const StepResult& result);

  const std::vector<double>& get_last_lr() const { return last_lr_; }  // a parameter group each

  /// "last_epoch", "base_lrs.0", ...: PyTorch's names. Loading sets the rates of that moment again.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);

 private:
  void apply();

  torch::optim::Optimizer& optimizer_;
  Rule rule_, momentum_;
  int64_t step_ = 0;
  std::vector<double> base_lrs_, last_lr_;
};

/// One cycle of rate and momentum together.
DEMI_API Scheduler one_cycle_scheduler(torch::optim::Optimizer& optimizer,
                                       const OneCycleOptions& options);

enum class Better { kLower, kHigher };
enum class Threshold { kRelative, kAbsolute };

/// ReduceLROnPlateau, with PyTorch's names and defaults.
struct PlateauOptions {
  Better better = Better::kLower;  // which metric is the better one
  double factor = 0.1;             // the rate is multiplied by it; below 1
  int64_t patience = 10;           // calls without progress that are borne
  double threshold = 1e-4;         // what counts as progress
  Threshold threshold_mode = Threshold::kRelative;
  int64_t cooldown = 0;  // calls after a reduction in which nothing is counted
  double min_lr = 0;     // floor of the rate
  double eps = 1e-8;     // a smaller change of the rate is not made
};

/// Lowers the learning rates when a metric has stopped getting better.
class DEMI_API Plateau {
 public:
  explicit Plateau(torch::optim::Optimizer& optimizer, PlateauOptions options = {});

  void step(double metric);

  double best() const { return best_; }
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

/// SGD's momentum, or Adam's and its kin's beta1. Throws UsageError for options that have neither.
DEMI_API void set_momentum(torch::optim::OptimizerOptions& options, double momentum);

}  // namespace demi::optim::lr
