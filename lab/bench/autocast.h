#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "demi/core/export.h"

namespace demi::bench {

/// Options of `demi bench autocast`.
struct AutocastBenchOptions {
  int rounds = 9;         // of each way, in turn; the smallest counts
  int iterations = 2000;  // of an op in a round (conv2d takes a tenth)
  int width = 1024;       // of the perceptron (3 x Linear) whose step is counted, and timed 9 times
  int batch = 128;        // rows of the perceptron's input
};

/// An op on 2 x 16 by 16 x 16 (conv2d: 2 x 16 x 8 x 8 by 16 x 16 x 3 x 3), one thread, nanoseconds
/// a call.
struct AutocastOp {
  std::string name;            // "linear", and "linear no_grad"
  double plain_ns;             // 16-bit inputs and weights, no region
  double demi_ns;              // 16-bit inputs, FP32 weights with a kept copy, in a region
  double libtorch_ns;          // the same in LibTorch's own autocast, its cache on
  double demi_over_plain;      // `demi_ns` over `plain_ns`
  double libtorch_over_plain;  // `libtorch_ns` over `plain_ns`
};

/// Forward and backward of the recipe's perceptron in a steady state: copies kept and refreshed by
/// the step before, gradients in bf16. The same model with bf16 parameters is timed with it.
struct AutocastStep {
  int width, batch;                  // of the perceptron, and rows of its input
  double demi_ms;                    // of a step in a region, milliseconds
  double bf16_parameters_ms;         // of a step of the model with bf16 parameters
  double demi_over_bf16_parameters;  // the one over the other
};

/// The results of `demi bench autocast`.
struct AutocastReport {
  std::vector<AutocastOp> ops;         // in the order in which they were timed
  std::int64_t casts_per_step;         // of any tensor, in that steady step
  std::int64_t weight_casts_per_step;  // of those, of weights
  AutocastStep step;                   // the perceptron's
};

/// Host cost of an autocast op. Results are compared with the plain op's first; a wrong one throws.
/// Sets the number of threads to 1 for the time of the measurement. CPU.
DEMI_API AutocastReport measure_autocast(const AutocastBenchOptions& options = {});

/// The cost and the gain of the op policy "fp32_reductions" on CPU, where LibTorch's lists leave
/// softmax, layer_norm, sums and norms in the dtype of their input. Measured on one attention block
/// (8, 64, 128), forward and backward, bf16.
struct ReductionsReport {
  double default_ms;     // smallest of several rounds
  double policy_ms;      // the same under the policy fp32_reductions
  double default_error;  // of the output: norm of the difference to the FP64 block, over the norm
                         // of that
  double policy_error;   // the same under the policy
};

/// Times the block under both policies in turn, `rounds` times each.
DEMI_API ReductionsReport measure_fp32_reductions(int rounds = 5);

}  // namespace demi::bench
