#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "demi/weights/weights.h"
#include "lab/bench/autocast.h"

namespace demi::bench {

/// Copies of these parameters are kept until the end of the scope.
class Owned {
 public:
  explicit Owned(std::vector<at::Tensor> parameters) : parameters_(std::move(parameters)) {
    for (const auto& p : parameters_) weights::own(p);
  }
  ~Owned() {
    for (const auto& p : parameters_) weights::disown(p);
  }

 private:
  std::vector<at::Tensor> parameters_;
};

/// Counts the casts of a steady step and times its forward and backward. Results are compared with
/// the model of bf16 parameters first; a wrong one throws.
void measure_step(const AutocastBenchOptions& options, AutocastReport& report);

}  // namespace demi::bench
