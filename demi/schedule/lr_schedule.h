#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "demi/core/export.h"

namespace demi::optim::lr {

/// The learning rate at a step (or an epoch, if the caller counts those), from 0, of a parameter
/// group whose own rate is base_lr. A pure function: schedules compose, and only the count needs
/// saving. Every schedule below gives PyTorch's values (torch.optim.lr_scheduler, the class named
/// at each) and throws UsageError for arguments out of their range.
using Schedule = std::function<double(int64_t step, double base_lr)>;

/// base_lr x gamma^(step / step_size). StepLR.
DEMI_API Schedule step(int64_t step_size, double gamma = 0.1);

/// base_lr x gamma^(how many milestones are reached). Milestones ascend. MultiStepLR.
DEMI_API Schedule multi_step(std::vector<int64_t> milestones, double gamma = 0.1);

/// base_lr x gamma^step. ExponentialLR.
DEMI_API Schedule exponential(double gamma);

/// Falls from base_lr to eta_min over t_max steps along half a cosine, and rises again after.
/// CosineAnnealingLR; Loshchilov and Hutter 2017, "SGDR", equation 5.
DEMI_API Schedule cosine(int64_t t_max, double eta_min = 0);

/// The cosine() that restarts after t_0 steps, then after t_0 x t_mult, ...
/// CosineAnnealingWarmRestarts.
DEMI_API Schedule cosine_warm_restarts(int64_t t_0, int64_t t_mult = 1, double eta_min = 0);

/// base_lr x a factor that goes from start_factor to end_factor over total_steps, in a straight
/// line: warm-up. LinearLR.
DEMI_API Schedule linear(double start_factor = 1.0 / 3, double end_factor = 1,
                         int64_t total_steps = 5);

/// base_lr x (1 - step / total_steps)^power, 0 from there on. PolynomialLR.
DEMI_API Schedule polynomial(int64_t total_steps = 5, double power = 1);

/// base_lr x factor(step). LambdaLR.
DEMI_API Schedule lambda(std::function<double(int64_t step)> factor);

/// schedules[0] until milestones[0], then schedules[1] counted from there, and so on: one milestone
/// less than schedules. SequentialLR.
DEMI_API Schedule sequential(std::vector<Schedule> schedules, std::vector<int64_t> milestones);

/// The shape of a cycle's two legs: half a cosine, or a line.
enum class Anneal { kCosine, kLinear };

/// Smith and Topin 2018, "Super-convergence"; OneCycleLR.
struct OneCycleOptions {
  /// Length of the cycle. Required, 1 or more.
  int64_t total_steps = 0;
  /// The peak. 0: the group's own learning rate is the peak.
  double max_lr = 0;
  /// Share of the steps in which the rate rises, 0 to 1.
  double pct_start = 0.3;
  /// The shape of its two legs.
  Anneal anneal = Anneal::kCosine;
  /// First rate = max_lr / div_factor.
  double div_factor = 25;
  /// Last rate = first rate / final_div_factor.
  double final_div_factor = 1e4;
  /// true: up, down to the first rate, then to the last. false: up, then to the last.
  bool three_phase = false;
  /// SGD's momentum or Adam's beta1 at the peak of the rate.
  double base_momentum = 0.85;
  /// SGD's momentum or Adam's beta1 at both ends.
  double max_momentum = 0.95;
};

/// Throws UsageError past total_steps, as PyTorch does. The last rate is that of total_steps - 1,
/// and total_steps has it too; PyTorch's formula rises or falls beyond it there.
DEMI_API Schedule one_cycle(OneCycleOptions options);

/// The momentum of the same cycle: high while the rate is low. The second argument of the schedule
/// is not used.
DEMI_API Schedule one_cycle_momentum(OneCycleOptions options);

}  // namespace demi::optim::lr
