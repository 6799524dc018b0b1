#pragma once

#include <functional>
#include <memory>

#include "demi/core/export.h"
#include "demi/loop/observer.h"
#include "demi/monitor/origin.h"

namespace demi::monitor {

/// Finds the first op of a Trainer's run or a loop's that makes Inf or NaN out of finite numbers,
/// as torch.autograd.set_detect_anomaly does for NaN in backward:
///
///     trainer.add(std::make_shared<demi::monitor::OriginSearch>([](const auto& o) { ... }));
///     step.watch(...);   // the same, of a demi::loop::Step
///
/// Before each batch buffers and the random generators' states are copied. It reads the results of
/// each op of forward, loss and gradients after backward, and weights, buffers and the optimizers'
/// moments before a step and after its update: the host waits for the device three times a step.
/// Inf or NaN before a step was loaded, or written between two steps. If something is not finite
/// after the step, the batch is repeated under observation, then once for each trial; weights,
/// gradients, buffers and random numbers are put back, so that the run continues as without. Each
/// place is reported once, and 20 of them at most; an overflow that the loss scale alone makes
/// (Origin::is_loss_scale) is reported once a run, and that of a dynamic scale after the first
/// fault, the first step without an overflow, or 10 steps.
///
/// An op is named with a layer by the weights that it reads: LibTorch's C++ modules have no hooks.
/// Memory that no op of LibTorch writes (a raw pointer) is noticed at the next op that reads it.
class DEMI_API OriginSearch : public loop::StepObserver {
 public:
  /// Called with each origin that is found, in the training thread.
  using Report = std::function<void(const Origin&)>;

  /// A search begins where Inf or NaN is met: a batch throws UsageError then if another thread of
  /// the process searches.
  explicit OriginSearch(Report report);
  ~OriginSearch() override;

  void before_forward(const loop::StepView& view) override;
  void after_forward(const loop::StepView& view, const at::Tensor& output) override;
  void after_backward(const loop::StepView& view) override;
  void after_update(const loop::StepView& view) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace demi::monitor
