#pragma once

#include <memory>
#include <vector>

#include "demi/optim/adam.h"
#include "demi/optim/adamw.h"
#include "demi/optim/lamb.h"
#include "demi/optim/lion.h"
#include "demi/optim/sgd.h"

namespace demi::optim::testing {

using Tensors = std::vector<at::Tensor>;

/// Optimizers with every kind of state, by number.
inline constexpr int kKinds = 6, kLamb = 4;

inline std::unique_ptr<Optimizer> one_of_kind(int kind, const Tensors& p, StepOptions step = {}) {
  switch (kind) {
    case 0:
      return std::make_unique<SGD>(p, SGDOptions(0.1), step);
    case 1:
      return std::make_unique<SGD>(p, SGDOptions(0.1).momentum(0.9).weight_decay(0.1), step);
    case 2:
      return std::make_unique<Adam>(p, AdamOptions(0.1).weight_decay(0.1), step);
    case 3:
      return std::make_unique<AdamW>(p, AdamWOptions(0.1).amsgrad(true), step);
    case kLamb:
      return std::make_unique<LAMB>(p, LAMBOptions(0.1).weight_decay(0.1), step);
    default:
      return std::make_unique<Lion>(p, LionOptions(0.1).weight_decay(0.1), step);
  }
}

}  // namespace demi::optim::testing
