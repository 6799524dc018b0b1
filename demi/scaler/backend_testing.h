#pragma once

#include "demi/scaler/grad_scaler.h"
#include "demi/step/backend.h"

namespace demi::testing {

/// A scaler on a backend of the test's choice.
class ScalerOn : public GradScaler {
 public:
  explicit ScalerOn(const optim::Backend& backend, GradScalerOptions options = {})
      : GradScaler(options, backend) {}
};

}  // namespace demi::testing
