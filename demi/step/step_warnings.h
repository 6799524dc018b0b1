#pragma once

#include <vector>

#include "demi/step/clip_watch.h"

namespace demi::optim {

class TensorTable;

/// Warnings about the steps of one optimizer. Those of a write and of an overflow come once.
class StepWarnings {
 public:
  /// A 16-bit gradient was written to that still carries the loss scale.
  void of_write();
  /// Gradients that look as if they were clipped before they were unscaled. Call it once a step
  /// whose numbers the host knows. `norm`: of the unscaled gradients.
  void of_clipping(float scale, float norm);
  /// Why no further step will be taken, if a parameter has become Inf. Call it after a step that an
  /// Inf or NaN has skipped.
  void of_overflow(std::vector<TensorTable>& tables);

 private:
  ClipWatch clip_watch_;
  bool warned_of_write_ = false, warned_of_overflow_ = false;
};

}  // namespace demi::optim
