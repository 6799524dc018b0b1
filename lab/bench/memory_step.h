#pragma once

#include <cstdint>
#include <vector>

#include "demi/core/export.h"
#include "lab/bench/memory_trace.h"
#include "lab/settings/resolved.h"
#include "lab/workload/workload.h"

namespace demi::bench {

/// A model in training or in use, whose memory is traced.
struct MemoryWork {
  settings::Resolved run;
  workload::DataShape shape = {};
  std::vector<int64_t> example = {};  // the shape of one: (in), (C, H, W) or (T)
  bool forward = false;       // one forward pass without a graph, in place of two training steps
  bool whole_logits = false;  // as MemoryBenchOptions
};

/// The trace, and the device allocator's figures for the same time.
struct MemoryMeasurement {
  MemoryTrace trace;
  int64_t peak_bytes = 0;      // above what was in use before
  int64_t reserved_bytes = 0;  // by the allocator afterwards; 0 if it does not say
};

/// Makes the model, its optimizer and a batch of so many examples of random numbers, and then takes
/// two training steps or one forward pass. Peaks count from the making of the model, of which only
/// what is kept counts. Throws c10::OutOfMemoryError beyond `limit_bytes` on a CPU.
DEMI_API MemoryMeasurement measure_memory(const MemoryWork& work, int64_t batch_size,
                                          int64_t limit_bytes);

}  // namespace demi::bench
