#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "demi/core/export.h"
#include "demi/core/state_dict.h"
#include "demi/scaler/scale_rule.h"
#include "demi/step/step_result.h"

namespace torch::optim {
class Optimizer;
}

namespace demi {

namespace optim {
class Backend;
}

/// Dynamic loss scaling (Micikevicius et al. 2018, "Mixed precision training", section 3.2) with
/// the interface and the numbers of torch.amp.GradScaler. One scaler a run; not for use from
/// several threads at once.
///
///     demi::GradScaler scaler;
///     scaler.scale(loss).backward();
///     scaler.unscale_(optimizer);      // only to look at or clip gradients before the step
///     scaler.step(optimizer);
///     scaler.update();
///
/// Works with every torch::optim::Optimizer, on any device, with gradients of any floating point
/// dtype, dense or sparse; the scale lives on the device of the first tensor given to scale().
/// Nothing here synchronises with demi's optimizers; any other one costs one host read a step, as
/// in PyTorch.
class DEMI_API GradScaler {
 public:
  /// What step() calls: zeroes the gradients, computes the loss, calls scale(loss).backward(),
  /// returns the loss.
  using LossClosure = std::function<at::Tensor()>;

  /// Throws UsageError for an option out of its range, unless disabled. Needs no device.
  explicit GradScaler(GradScalerOptions options = {});
  ~GradScaler();
  GradScaler(GradScaler&&) noexcept;
  GradScaler& operator=(GradScaler&&) noexcept;

  /// outputs × scale. 16-bit outputs become fp32 (65,536 is Inf in fp16); others keep their dtype.
  /// Throws UsageError for an undefined output.
  at::Tensor scale(const at::Tensor& output);
  std::vector<at::Tensor> scale(const std::vector<at::Tensor>& outputs);

  /// Divides the gradients of this optimizer by the scale and looks for Inf and NaN. In place; a
  /// demi optimizer's gradients of 16 bits (StepOptions::low_precision_grads, 16-bit weights) stay
  /// as they are and the factor is recorded, since fp16 would underflow again. At most once an
  /// optimizer and step, after its last backward: throws UsageError for a second call. A demi
  /// optimizer's step() throws it if a backward has added to the gradients since, and if
  /// zero_grad() and a backward have made all of them anew (the batch was given up), unscale_() and
  /// step() begin again with these. Of other optimizers nobody knows who made a gradient: as in
  /// PyTorch, it counts as unscaled until update().
  void unscale_(torch::optim::Optimizer& optimizer);

  /// unscale_ if that was not done, then the optimizer's step unless a gradient is Inf or NaN: a
  /// skipped step changes nothing at all. Throws UsageError after step() without update(), and if
  /// there is no gradient.
  ///
  /// With a closure (LBFGS and others that evaluate the model several times) the closure zeroes the
  /// gradients, computes the loss, calls scale(loss).backward() and returns the loss; gradients are
  /// unscaled after each call. The first Inf or NaN ends the step and restores parameters and
  /// optimizer state. With several ranks it returns the mean over all of them
  /// (DistributedDataParallel::average), so that the optimizer decides alike on each; loop::Step
  /// does that by itself.
  StepResult step(torch::optim::Optimizer& optimizer, const LossClosure& closure = nullptr);

  /// Steps several optimizers as step() above does one. They skip together: an Inf or NaN in the
  /// gradients of one holds back all, and so does their norm together if it is above the
  /// StepOptions::skip_norm_above of one.
  std::vector<StepResult> step(const std::vector<torch::optim::Optimizer*>& optimizers);

  /// For optimizers that step in calls of their own, but are to be skipped together for their norm
  /// (StepOptions::skip_norm_above): measures the gradients of all and decides for the next step of
  /// each. After unscale_(), before clipping and step(). Does nothing if none has such a limit.
  /// step() of several does it by itself. Works with a disabled scaler, too. Throws UsageError if
  /// scale() was never called.
  void decide_by_norm(const std::vector<torch::optim::Optimizer*>& optimizers);

  /// The scale for the next step, from what the optimizers found since the last update. Once a
  /// step, after all optimizers. Unchanged if a step was skipped for its norm and none for an Inf
  /// or NaN. Throws UsageError if none was checked.
  void update();

  /// Sets the scale: positive, finite in fp32. The tensor form takes one fp32 element that needs no
  /// gradient; it is read on the host.
  void update(double new_scale);
  void update(const at::Tensor& new_scale);

  /// 1 if disabled. Waits for the device.
  float get_scale() const;
  /// Clean steps since the scale last moved. Waits for the device.
  int64_t get_growth_tracker() const;
  /// Steps that were skipped for an Inf or NaN since this scaler was made. Waits for the device.
  int64_t get_skipped_steps() const;
  /// Options by PyTorch's names: get_growth_factor, get_backoff_factor, get_growth_interval. The
  /// setters set_growth_factor, set_backoff_factor and set_growth_interval throw UsageError for a
  /// value out of its range, and then change nothing.
  double get_growth_factor() const;
  double get_backoff_factor() const;
  int64_t get_growth_interval() const;
  void set_growth_factor(double factor);
  void set_backoff_factor(double factor);
  void set_growth_interval(int64_t interval);
  /// False: every call passes through.
  bool is_enabled() const;
  /// The options in use.
  const GradScalerOptions& options() const;

  /// "scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker" as in
  /// PyTorch, and "_hysteresis_tracker" and "_amax_history.N" if those options are in use. Empty if
  /// disabled. Call after update(). Loading forgets what was found of gradients since then; it
  /// throws UsageError for an empty or incomplete dict and then changes nothing.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);

 protected:
  /// A scaler on another backend than the machine's, for tests. The backend outlives the scaler.
  GradScaler(GradScalerOptions options, const optim::Backend& backend);

 private:
  StepResult step_with_closure(torch::optim::Optimizer& optimizer, const LossClosure& closure);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace demi
