#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "demi/core/export.h"
#include "lab/bench/recipe.h"

namespace demi::bench {

/// `demi bench model`: from which width on mixed precision gains time, on the AMP recipe's
/// perceptron with as many features as outputs.
struct ModelBenchOptions {
  std::vector<int64_t> widths{64, 256, 1024, 4096};  // features of each layer, 1 or more
  int64_t batch_size = 512;                          // rows of a step
  int64_t layers = 3;                                // linear layers
  /// The runs, as in RecipeBenchOptions; the first one that is not fp32 counts.
  std::vector<settings::RunSpec> runs = {};
  int warmup = 5, steps = 5, rounds = 5;  // as in RecipeBenchOptions
  OnPart on_part = {};                    // told of the parts
};

/// The steps of one width.
struct ModelBenchRow {
  int64_t width = 0;         // features of each layer
  RecipeBenchResult result;  // its timings, FP32's first
  /// The step in FP32.
  const RecipeTiming& fp32() const { return result.runs.front(); }
  /// The step in mixed precision.
  const RecipeTiming& mixed() const { return result.runs[1]; }
};

/// The results of `demi bench model`.
struct ModelBenchResult {
  std::vector<ModelBenchRow> rows;         // by rising width
  std::optional<int64_t> gain_from_width;  // the least from which on all are faster; none: not met
};

/// Checks and times each width as bench_recipe does. Throws as that, and UsageError for no width.
DEMI_API ModelBenchResult bench_model(const ModelBenchOptions& options, c10::Device device);

/// The least width from which on every speedup is above 1. `rows` by rising width.
DEMI_API std::optional<int64_t> gain_from(const std::vector<ModelBenchRow>& rows);

}  // namespace demi::bench
