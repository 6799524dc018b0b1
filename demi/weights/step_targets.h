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
struct Owned;

/// A low precision copy that a step has to write together with its FP32 parameter. Element i behind
/// `data` belongs to element i behind the parameter's own data pointer: copies have the parameter's
/// strides, and both are dense.
struct Copy {
  c10::ScalarType dtype;
  void* data;
};

/// What a step writes for one parameter.
struct StepTarget {
  void* parameter = nullptr;     // mutable data pointer
  std::array<Copy, 2> copies{};  // the first copy_count are filled
  int copy_count = 0;
};

/// What the steps over some parameters write: the parameters and their copies. One for all steps,
/// since it remembers where the copies stand (a search of the table costs as much as a small
/// tensor's update). Used by one thread at a time.
class DEMI_API StepTargets {
 public:
  StepTargets() = default;
  explicit StepTargets(std::vector<at::Tensor> parameters);  // holds them

  /// Call before a step, on the thread that called the optimizer and outside at::parallel_for.
  /// Gives for each parameter the pointers that the step writes: the parameter, and those of its
  /// copies that are valid now. From here until finish() the copies count as stale, so a step that
  /// throws in between leaves none behind that is wrong; their memory is held, whoever drops them
  /// meanwhile. A parameter that is not owned, not dense or has no copy yet gets copy_count 0.
  /// Valid until the next call. Throws UsageError where two parameters lie in the same memory.
  ///
  /// `captured`: the step is being recorded for replays. Then copies that are stale are written,
  /// too, all are held for as long as this object lives, and no others are made of these parameters
  /// while their data stay where they are, since a replay would not refresh them.
  const std::vector<StepTarget>& begin(bool captured = false);

  /// Call after the step (on a device: after its kernels were launched). The parameters' and the
  /// copies' version counters are bumped and the copies named by begin() are valid again: the step
  /// promises that each holds its parameter, rounded to nearest even. That is also so where the
  /// device decided to skip and nothing was written.
  void finish();

 private:
  void find_owned();
  void choose_copies(std::size_t i, bool captured);
  void add_copy(StepTarget& target, const at::Tensor& low);
  void hold_for_replays(std::size_t i, std::vector<at::Tensor> copies);
  bool take_pointers(bool captured);
  void refuse_overlap() const;

  std::vector<at::Tensor> parameters_;
  std::vector<StepTarget> targets_;
  std::vector<at::Tensor> held_;  // the targets' copies, in order, from begin() to finish()
  std::vector<Owned*> owned_;     // of each parameter; null: not owned
  std::uint64_t generation_ = std::numeric_limits<std::uint64_t>::max();  // of the table, then
  std::vector<std::shared_ptr<const CapturedStep>> captured_;
};

}  // namespace demi::weights
