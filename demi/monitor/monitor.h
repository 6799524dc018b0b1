#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "demi/loop/observer.h"
#include "demi/monitor/exponent_histogram.h"

namespace demi::monitor {

/// The gradients of one layer in one step, as backward left them: times the loss scale. A layer is
/// a module that has parameters of its own.
struct LayerHealth {
  std::string name;                        // as in named_modules(); "model" for the model itself
  ExponentHistogram weight_gradients;      // of its parameters, times the loss scale
  ExponentHistogram activation_gradients;  // of the layer's output
  /// L2 norm of the parameters' change over that of the parameters; 0 in a skipped step. A
  /// parameter of up to 2^16 elements counts whole; of a larger one evenly spaced slices of about
  /// as many elements stand for all of it. None if all parameters are 0, or there are none.
  std::optional<double> update_ratio;
  /// Share of update_ratio's elements with a gradient other than 0 that the step did not change,
  /// because the update was too small for the format that they are trained in. A 16-bit parameter
  /// is trained as its FP32 master, or as WeightMode says. None for a parameter that is rounded by
  /// chance, and in a skipped step.
  std::optional<double> unchanged;
};

/// The monitor's record of one step.
struct StepHealth {
  /// The step's epoch and number, both from 1.
  int64_t epoch = 1, step = 1;
  std::optional<double> loss_scale, grad_norm;  // as in loop::StepMetrics
  bool skipped = false;                         // an optimizer changed nothing
  std::vector<LayerHealth> layers;              // in the order of named_modules()

  DEMI_API ExponentHistogram weight_gradients() const;  // of all layers
  /// Histogram of the gradients of all layers' outputs.
  DEMI_API ExponentHistogram activation_gradients() const;
};

/// The histogram of the gradients themselves. A scale that is no power of two counts as the nearest
/// one.
DEMI_API ExponentHistogram unscaled(const ExponentHistogram& scaled, double loss_scale);

/// The effect of fp16 on gradients, as shares of all of them, 0 to 1.
struct FlushedShares {
  double zero = 0;                 // exactly 0
  double flushed_unscaled = 0;     // below 2^-25, which fp16 rounds to 0
  double flushed_scaled = 0;       // still below it, times the loss scale
  double overflowed_unscaled = 0;  // 2^16 or more, Inf, NaN
  double overflowed_scaled = 0;    // likewise, times the loss scale
};
/// The shares for the gradients of a histogram, which are times `loss_scale`, in fp16 without that
/// scale and with it.
DEMI_API FlushedShares flushed_shares(const ExponentHistogram& scaled, double loss_scale);

/// Shares of all gradients, 0 to 1, that round to 0 in formats of 8 and 4 bits with one scale for
/// each layer, which its greatest gradient sets: those below amax over 2^18.8 of fp8_e4m3, 2^32.8
/// of fp8_e5m2, 2^4.6 of fp4_e2m1 (the greatest number over half of the least). By powers of two:
/// in the bin that holds the limit, and where amax is above the least number of its bin, numbers
/// count as kept. A scale for a block of them keeps more, which the tensor's powers of two do not
/// show.
struct NarrowShares {
  double e4m3 = 0, e5m2 = 0, e2m1 = 0;  // by format
};
/// The shares for `gradients` of a step's layers.
DEMI_API NarrowShares narrow_shares(const StepHealth& step,
                                    ExponentHistogram LayerHealth::*gradients);

/// Looks at the gradients of the steps 1, 1 + N, 1 + 2N, ... of a Trainer's run or a loop's:
///
///     trainer.add(std::make_shared<demi::monitor::Monitor>(100, [](const auto& step) { ... }));
///     step.watch(...);   // the same, of a demi::loop::Step
///
/// Other steps cost nothing. In such a step each gradient of a weight and of a layer's output is
/// read once more, and a sample of the weights is copied. Results stay on the device until the
/// step is read, and `report` is called then, before the next observer's on_step.
class DEMI_API Monitor : public loop::StepObserver {
 public:
  /// Called with each step that is read, in the training thread.
  using Report = std::function<void(const StepHealth&)>;

  /// Throws UsageError for `every` below 1.
  Monitor(int64_t every, Report report);
  ~Monitor() override;

  bool needs_step(std::int64_t step) override;
  void before_forward(const loop::StepView& view) override;
  void after_backward(const loop::StepView& view) override;
  void after_update(const loop::StepView& view) override;
  void on_step(const loop::StepMetrics& step, int64_t examples) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace demi::monitor
