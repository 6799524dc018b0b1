#pragma once

#include <c10/core/Event.h>

#include <vector>

#include "demi/checkpoint/checkpoint.h"
#include "demi/core/export.h"

namespace demi::checkpoint {

/// A copy of a checkpoint that training does not change: contiguous tensors on the CPU, pinned for
/// those of a CUDA device. The constructor returns once the copies are made, or on CUDA once they
/// are enqueued on the current stream of each tensor's device.
class DEMI_API Snapshot {
 public:
  explicit Snapshot(const Checkpoint& original);

  /// Waits until the copies are made; from any thread.
  const Checkpoint& finish() const;

 private:
  Checkpoint copy_;
  std::vector<c10::Event> enqueued_;  // one for each CUDA device, after its last copy
};

}  // namespace demi::checkpoint
