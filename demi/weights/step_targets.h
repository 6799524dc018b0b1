#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "demi/core/export.h"

namespace demi::weights {

struct CapturedStep;
struct OwnedParameter;

/// A low precision copy that a step writes together with its FP32 parameter. Element i of `data`
/// belongs to element i of the parameter's data: both are dense and have the same strides.
struct Copy {
  c10::ScalarType dtype;
  void* data;
};

/// The memory that a step writes for one parameter.
struct StepTarget {
  void* parameter = nullptr;     // mutable data pointer
  std::array<Copy, 2> copies{};  // the first copy_count are used
  int copy_count = 0;
};

/// Finds the memory that the steps over some parameters write: the parameters and their copies.
/// Make one object for all steps: it remembers where the copies are, because searching the table
/// costs as much as a small tensor's update. One thread at a time.
class DEMI_API StepTargets {
 public:
  StepTargets() = default;
  explicit StepTargets(std::vector<at::Tensor> parameters);  // holds them

  /// Call before a step, on the thread that called the optimizer and outside at::parallel_for.
  /// Returns the pointers that the step writes for each parameter: the parameter, and its copies
  /// that are valid now. Until finish() these copies count as stale, so a step that throws leaves
  /// no wrong copy behind; their memory is held even if they are dropped meanwhile. A parameter
  /// that is not owned, not dense or has no copy gets copy_count 0. The result is valid until the
  /// next call. Throws UsageError if two parameters share memory.
  ///
  /// `captured`: the step is recorded for replays. Stale copies are then written, too, and all are
  /// held for as long as this object lives. No other copies are made of these parameters while
  /// their data stay where they are, because a replay would not refresh them.
  const std::vector<StepTarget>& begin(bool captured = false);

  /// Call after the step (on a device: after its kernels were launched). Increments the version
  /// counters of parameters and copies, and makes the copies of begin() valid again. The step
  /// guarantees that each copy holds its parameter, rounded to nearest, ties to even; this also
  /// holds if the device decided to skip and nothing was written.
  void finish();

  /// What begin() holds for replays, from now on the caller's: for as long as the graph lives.
  std::vector<std::shared_ptr<const CapturedStep>> take_captured() { return std::move(captured_); }
  /// Call after a replay of a captured step, which wrote the parameters and the copies that begin()
  /// has returned for the capture: does what finish() does for those.
  void note_replay();

 private:
  void find_owned();
  void choose_copies(std::size_t i, bool captured);
  void add_copy(StepTarget& target, const at::Tensor& low);
  void hold_for_replays(std::size_t i, std::vector<at::Tensor> copies);
  bool take_pointers(bool captured);
  void refuse_overlap() const;
  template <class IsWritten>
  void renew_copies(const IsWritten& is_written);

  std::vector<at::Tensor> parameters_;
  std::vector<StepTarget> targets_;
  std::vector<at::Tensor> held_;        // the targets' copies, in order, from begin() to finish()
  std::vector<OwnedParameter*> owned_;  // for each parameter; null if not owned
  /// The table's generation when owned_ was filled.
  std::uint64_t generation_ = std::numeric_limits<std::uint64_t>::max();
  std::vector<std::shared_ptr<const CapturedStep>> captured_;
};

}  // namespace demi::weights
