#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "demi/kernels/cuda_kernels.h"
#include "demi/kernels/step_plan.h"

namespace demi::optim {

/// A step plan's tables in device memory, and the launches over them on the device's current
/// stream. Nothing waits for the device. A pass uploads the part of the tables that has changed. A
/// pass in a stream capture uploads all of them, and so does every pass after it: a replay puts the
/// captured tables back, and a capture that is given up has uploaded nothing.
class DevicePlan {
 public:
  /// `state`: uint8, (sizeof StepState), on the device. The caller keeps it from plan to plan.
  DevicePlan(const kernels::CudaKernels& kernels, const kernels::StepPlan& plan, at::Tensor state);

  void measure(const kernels::StepPlan& plan);  // pass 1 and its sums
  /// Decides. Returns the table that update() is given.
  kernels::StepTable decide(const kernels::StepPlan& plan);
  void update(const kernels::StepTable& table);  // pass 2 of the table's range, and 3 for LAMB
  /// The memory is in use on that stream too.
  void record_stream(c10::Stream stream);

  /// Whether the current stream is being captured, so that every replay runs the present launches.
  bool is_captured() const;

 private:
  kernels::StepTable bring_up_to_date(const kernels::StepPlan& plan, void* stream);

  const kernels::CudaKernels& kernels_;
  at::Tensor memory_, state_;  // uint8, on the device
  /// The tables as they should be on the device, and as they are (empty: unknown).
  std::vector<std::byte> staging_, uploaded_;
  bool captured_ = false;
};

/// uint8, (sizeof StepState), for a plan that has taken no step.
at::Tensor make_state(c10::Device device);
kernels::StepState read_state(const at::Tensor& state);  // waits for the device
void write_state(const at::Tensor& state, const kernels::StepState& value);

}  // namespace demi::optim
