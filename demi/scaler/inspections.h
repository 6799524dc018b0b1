#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <unordered_map>

#include "demi/scaler/gradients.h"
#include "demi/scaler/inspected_gradients.h"

namespace torch::optim {
class Optimizer;
}

namespace demi::optim {
class PendingStep;
}

// What a GradScaler has found of its optimizers since the last update.
namespace demi::scaler {

enum class Stage { kReady, kUnscaled, kStepped };

/// What was found of one optimizer.
struct Inspection {
  Stage stage = Stage::kReady;
  bool in_place = false;                  // fp32 gradients were divided
  bool is_own = false;                    // an optimizer of demi's
  std::weak_ptr<optim::PendingStep> own;  // expires with that optimizer
  FoundInf found = no_devices();
  at::Tensor amax;       // fp32, (), of the unscaled gradients; ScaleMode::kAmax
  at::Tensor grad_norm;  // fp32, ()
  at::Tensor above;      // fp32, (): the norm of all is above a limit; undefined: not decided
  InspectedGradients gradients;
};

/// A batch that was given up after unscale_() leaves nothing: the inspection begins again. Only
/// demi's optimizers know which gradients backward has made. Throws UsageError with `where` if
/// backward has added to gradients that were divided by the scale.
void leave_behind(torch::optim::Optimizer& optimizer, Inspection& inspection, const char* where);

/// What was found of all optimizers together.
struct Totals {
  FoundInf found = no_devices();
  at::Tensor amax;   // fp32, (): the greatest; undefined: no inspection has one
  at::Tensor above;  // fp32, (): a step was skipped for its norm if not 0; undefined: not decided
};

/// The inspections of all optimizers, by optimizer.
class Inspections {
 public:
  /// That of this optimizer: a new one if there is none, and for an optimizer at the address of a
  /// demi optimizer that has gone.
  Inspection& of(const torch::optim::Optimizer& optimizer);
  /// Null if there is none.
  const Inspection* find(const torch::optim::Optimizer& optimizer) const;

  /// Throws UsageError for a parameter of two optimizers, of which one divides .grad in place:
  /// `optimizer` is about to be inspected.
  void refuse_second_division(torch::optim::Optimizer& optimizer, bool in_place) const;

  /// amax and above are on `device`.
  Totals totals(c10::Device device) const;

  /// Ends all inspections. Without a step demi's optimizers still hold what was recorded for it.
  void end();

 private:
  std::unordered_map<const torch::optim::Optimizer*, Inspection> all_;
};

}  // namespace demi::scaler
