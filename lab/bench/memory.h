#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "lab/bench/memory_trace.h"
#include "lab/bench/progress.h"
#include "lab/recipes/machine.h"
#include "lab/settings/config.h"
#include "lab/settings/run_spec.h"

namespace demi::bench {

/// `demi bench memory`: bytes of tensors of a recipe's model, predicted and measured.
struct MemoryBenchOptions {
  settings::Config config = {};  // model, optimizer, loss, clipping, accumulation
  /// (N, in), (N, C, H, W) or (N, T), the batch first; empty: input_of(config).
  std::vector<int64_t> input = {};
  std::vector<int64_t> batch_sizes = {};  // empty: the input's
  /// Empty: FP32, the device's 16-bit model, its mixed precision.
  std::vector<settings::RunSpec> runs = {};
  bool forward = false;        // one forward pass without training
  bool whole_logits = false;   // the loss of all outputs, although the network has its own
  int64_t classes = 0;         // 0: the recipe's; two for texts
  int64_t vocabulary = 20000;  // of texts
  OnPart on_part = {};         // told of the parts
};

/// Bytes of tensors of one run.
struct MemoryRow {
  std::string precision;        // the run's label
  int64_t batch_size = 0;       // examples of a step
  MemoryByKind peak;            // measured, at the moment of the peak
  MemoryByKind predicted;       // at the peak
  MemoryByKind current;         // measured, after the last step
  int64_t peak_bytes = 0;       // measured: the allocator's own count
  int64_t predicted_bytes = 0;  // the sum of `predicted`
  int64_t reserved_bytes = 0;   // by the allocator after the work; 0 if it does not say
  double reduction = 0;         // of the peak, against FP32's: 1 - this / FP32
};

/// The results of `demi bench memory`.
struct MemoryBenchResult {
  recipes::Machine machine;     // that it was measured on
  std::vector<int64_t> input;   // of one batch; the batch is the rows'
  int64_t parameters = 0;       // trained ones, by element
  std::vector<MemoryRow> rows;  // by batch size, FP32 first in each
};

/// The shape of the recipe's batch, as far as the config says; texts have 256 tokens.
DEMI_API std::vector<int64_t> input_of(const settings::Config& config);

/// Predicts and measures. The prediction is made from the work with two smaller batches, powers of
/// two of at most 32 and 64 examples (for batches below 8: with one and two examples more): each
/// block that grows with the batch is extrapolated to the batch size asked for. A run that is
/// predicted to exceed the free memory is not tried. Throws UsageError: a size below 1, of the
/// wrong number of dimensions, or beyond the free memory, with the bound.
DEMI_API MemoryBenchResult bench_memory(const MemoryBenchOptions& options, c10::Device device);

}  // namespace demi::bench
