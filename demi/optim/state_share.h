#pragma once

#include <cstddef>

#include "demi/core/export.h"
#include "demi/step/step_result.h"

namespace demi::optim {

/// The part of an optimizer's state that this process keeps, where several processes share it
/// (distributed::ShardedOptimizerState). Parameters are counted through all groups.
class DEMI_API StateShare {
 public:
  virtual ~StateShare() = default;

  /// Whether this process keeps the parameter's state and updates it.
  virtual bool holds(std::size_t parameter) const = 0;

  /// Called before each step. Throws if exchange() could not follow.
  virtual void before_step() const {}
  /// Called after each step: brings the parameters that other processes updated.
  virtual void exchange(const StepResult& result) = 0;
};

}  // namespace demi::optim
