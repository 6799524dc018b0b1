#pragma once

#include <cstdint>
#include <vector>

#include "demi/core/export.h"
#include "demi/profile/allocation_log.h"

namespace demi::bench {

/// The purpose of a block of memory.
enum class MemoryKind {
  parameters,   // and buffers
  copies,       // 16-bit copies of parameters
  gradients,    // of parameters
  optimizer,    // moments, FP32 masters, counts
  activations,  // what the forward pass leaves for backward, its result included
  other,        // the batch, and what an op needs for a moment
};

/// Bytes of tensors by kind.
struct MemoryByKind {
  /// Bytes by MemoryKind.
  int64_t parameters = 0, copies = 0, gradients = 0, optimizer = 0, activations = 0, other = 0;

  /// The bytes of one kind.
  int64_t& of(MemoryKind kind);
  /// The bytes of all kinds.
  int64_t total() const {
    return parameters + copies + gradients + optimizer + activations + other;
  }
  bool operator==(const MemoryByKind&) const = default;
};

/// A block of memory and what it is for.
struct TracedBlock {
  profile::Allocation block;            // where it is, and from when to when
  MemoryKind kind = MemoryKind::other;  // what it is for
};

/// The blocks of a piece of work, in the order in which they were made.
struct MemoryTrace {
  std::vector<TracedBlock> blocks;  // in the order in which they were made
  int64_t begin = 0, end = 0;       // times: the peak is looked for from begin to end
};

/// Bytes of the blocks that are alive at a time.
DEMI_API MemoryByKind memory_at(const MemoryTrace& trace, int64_t time);

/// Bytes at the moment with the greatest sum, the first one if there are several.
DEMI_API MemoryByKind memory_at_peak(const MemoryTrace& trace);

/// The trace of the same work with `size` examples, from those with `small` and `large`. Blocks
/// that grew with the batch are assumed to grow further; the others, and those that only `of_large`
/// has, keep their bytes. The order of the blocks is that of `of_large`.
DEMI_API MemoryTrace extrapolated(const MemoryTrace& of_small, int64_t small,
                                  const MemoryTrace& of_large, int64_t large, int64_t size);

}  // namespace demi::bench
