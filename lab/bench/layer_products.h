#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "lab/bench/progress.h"

namespace demi::bench {

/// `demi bench matmul --layers`: layers of 16-bit numbers in a region on a CPU, forward and
/// backward: demi's, LibTorch's (DEMI_KERNELS=aten) and the same in FP32, in turn.
struct LayerProductsOptions {
  std::vector<std::string> dtypes{"bf16", "fp16"};  // fp16 and bf16, or one of them
  std::string only = {};  // of layers whose name contains this; empty: all
  int rounds = 9;         // 1 or more
  OnPart on_part = {};    // told of the parts
};

/// Times are medians of the rounds. If the processor has instructions for the dtype, demi's and
/// LibTorch's are the same products.
struct LayerProductsRow {
  /// The layer, and the dtype of its numbers.
  std::string layer, dtype;
  /// Forward and backward of the layer, milliseconds.
  double fp32_ms = 0, demi_ms = 0, libtorch_ms = 0;
  double error = 0;  // the greatest distance from FP32, of result and gradients, over its norm
  /// FP32's time over demi's.
  double speedup() const { return fp32_ms / demi_ms; }
  /// LibTorch's time over demi's.
  double libtorch_over_demi() const { return libtorch_ms / demi_ms; }
};

/// The names of the layers.
DEMI_API std::vector<std::string> layer_names();

/// Compares results and gradients with FP32's before anything is timed. Throws UsageError for
/// options out of range, TrainingError for a wrong result.
DEMI_API std::vector<LayerProductsRow> bench_layer_products(const LayerProductsOptions& options);

}  // namespace demi::bench
