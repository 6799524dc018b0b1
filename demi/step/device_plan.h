#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "demi/kernels/cuda_kernels.h"
#include "demi/kernels/step_plan.h"

namespace demi::optim {

/// Tables that a recording's passes copy from memory of their own, so that the host can change them
/// between two replays.
struct RecordedTables {
  struct Version {
    at::Tensor source;               // uint8, on the device
    std::vector<std::byte> content;  // as it should be there
    std::vector<std::byte> uploaded;
  };
  std::vector<Version> versions;  // in the order of the passes
};

/// A step plan's tables in device memory, and the launches over them on the device's current
/// stream. Nothing waits for the device. A pass uploads the part of the tables that has changed. A
/// pass in a stream capture of the program's uploads all of them, and so does every pass after it:
/// a replay puts the captured tables back, and a capture that is given up has uploaded nothing. In
/// a recording of demi's (graph::RecordingScope) each replay copies the tables from RecordedTables.
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

  /// The tables of the recording under way, now the caller's; null if no pass was recorded.
  std::shared_ptr<RecordedTables> take_recorded() { return std::move(recorded_); }
  /// Before a replay: uploads the plan's groups into the tables, if they differ from what is there.
  void upload_groups(RecordedTables& tables, const kernels::StepPlan& plan);
  /// After a replay: what lies in the memory is not what this object has put there.
  void note_replay() { uploaded_.clear(); }

 private:
  kernels::StepTable bring_up_to_date(const kernels::StepPlan& plan, void* stream);
  void record_copy();

  const kernels::CudaKernels& kernels_;
  at::Tensor memory_, state_;  // uint8, on the device
  /// The tables as they should be on the device, and as they are (empty: unknown).
  std::vector<std::byte> staging_, uploaded_;
  bool captured_ = false;
  std::shared_ptr<RecordedTables> recorded_;  // of the recording under way
};

/// uint8, (sizeof StepState), for a plan that has taken no step.
at::Tensor make_state(c10::Device device);
kernels::StepState read_state(const at::Tensor& state);  // waits for the device
void write_state(const at::Tensor& state, const kernels::StepState& value);

}  // namespace demi::optim
