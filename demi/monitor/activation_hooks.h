#pragma once

#include <memory>
#include <vector>

#include "demi/monitor/exponent_histogram.h"
#include "demi/monitor/layers.h"

namespace demi::monitor {

/// Counts the gradients of the layers' outputs of one thread's forward passes while it lives: the
/// output of the last op of a row of ops that read a layer's weights. Counting continues in
/// backward, after this object is gone.
class ActivationHooks {
 public:
  /// `counters`: one a layer; gets what backward brings.
  ActivationHooks(std::shared_ptr<const Layers> layers,
                  std::shared_ptr<std::vector<ExponentCounter>> counters);
  ~ActivationHooks();
  ActivationHooks(const ActivationHooks&) = delete;
  ActivationHooks& operator=(const ActivationHooks&) = delete;

 private:
  struct Watch;
  std::unique_ptr<Watch> watch_;
};

}  // namespace demi::monitor
