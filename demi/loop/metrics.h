#pragma once

#include <cstdint>
#include <vector>

#include "demi/loop/observer.h"
#include "demi/step/step_result.h"

namespace demi::loop {

/// Loss scale, norm and whether it was skipped, of all optimizers' steps together. Waits for the
/// device.
void add_results(const std::vector<StepResult>& results, bool scaled, StepMetrics& record);

/// Finished steps that the host has not read from the device, in order.
class UnreadSteps {
 public:
  /// `known`: what the host knows of the step. `loss`: the sum over its batches.
  void add(const StepMetrics& known, at::Tensor loss, std::int64_t batches,
           std::vector<StepResult> results) {
    steps_.push_back({known, std::move(loss), batches, std::move(results)});
  }
  std::int64_t count() const { return std::ssize(steps_); }
  /// All of them, with loss, loss scale, norm, and whether an optimizer skipped. `first`: whose
  /// learning rate is recorded. Waits for the device.
  std::vector<StepMetrics> read(bool scaled, const torch::optim::Optimizer& first);

 private:
  struct Step {
    StepMetrics known;
    at::Tensor loss;
    std::int64_t batches;
    std::vector<StepResult> results;
  };
  std::vector<Step> steps_;
};

}  // namespace demi::loop
