#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "demi/kernels/cuda_kernels.h"
#include "demi/kernels/step_plan.h"

namespace demi::optim {

/// A step plan's tables in device memory, and the launches over them on the current stream of that
/// device. Nothing waits for the device but read(). Tables travel only where they changed since the
/// last time; in a stream capture all of them do, and from then on in every step, since a replay
/// puts the captured ones back.
class DevicePlan {
 public:
  /// `state`: uint8, (sizeof StepState), on the device; kept by the caller from plan to plan.
  DevicePlan(const kernels::CudaKernels& kernels, const kernels::StepPlan& plan, at::Tensor state);

  void measure(const kernels::StepPlan& plan);  // pass 1 and its sums
  void update(const kernels::StepPlan& plan);   // decides; pass 2, and 3 for LAMB
  void end_step();
  /// The memory is in use on that stream too.
  void record_stream(c10::Stream stream);

  /// Whether the current stream is being captured: what is launched now is run by every replay.
  bool is_captured() const;

 private:
  kernels::StepTable bring_up_to_date(const kernels::StepPlan& plan, void* stream);

  const kernels::CudaKernels& kernels_;
  at::Tensor memory_, state_;                  // uint8, on the device
  std::vector<std::byte> staging_, uploaded_;  // what should be there; what is (empty: unknown)
  bool captured_ = false;
};

/// uint8, (sizeof StepState), for a plan that has taken no step.
at::Tensor make_state(c10::Device device);
kernels::StepState read_state(const at::Tensor& state);  // waits for the device
void write_state(const at::Tensor& state, const kernels::StepState& value);

}  // namespace demi::optim
