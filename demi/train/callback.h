#pragma once

#include <cstdint>

#include "demi/core/export.h"
#include "demi/train/history.h"
#include "demi/train/names.h"

namespace demi::train {

/// Observes the epochs of a run beside its steps. It is called in the training thread.
class DEMI_API Callback : public StepObserver {
 public:
  /// An epoch begins, of `epochs`; it has `steps` optimizer steps.
  virtual void on_epoch_begin(int64_t /*epoch*/, int64_t /*epochs*/, int64_t /*steps*/) {}
  /// The validation after this epoch begins.
  virtual void on_evaluate_begin(int64_t /*epoch*/) {}
  /// An epoch has ended, with its validation.
  virtual void on_epoch_end(const EpochRecord&) {}
};

}  // namespace demi::train
