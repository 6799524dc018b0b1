#pragma once

#include "demi/core/export.h"

namespace demi::bench {

/// What the op policy "fp32_reductions" costs and gains on CPU, where LibTorch's lists leave
/// softmax, layer_norm, sums and norms in the dtype of their input. One attention block (8, 64,
/// 128), forward and backward, bf16.
struct ReductionsReport {
  double default_ms;  // smallest of several rounds
  double policy_ms;
  double default_error;  // of the output: norm of the difference to the FP64 block, over the norm
                         // of that
  double policy_error;
};

DEMI_API ReductionsReport measure_fp32_reductions(int rounds = 5);

}  // namespace demi::bench
