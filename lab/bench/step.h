#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "demi/core/export.h"

namespace demi::bench {

/// `demi bench step`: the clipped, scaled and checked step of one optimizer over fp32 parameters
/// with bf16 copies and bf16 gradients, against LibTorch's optimizer with LibTorch's clipping and
/// unscaling, and two yardsticks of the machine's memory: a plain copy, and a pass that
/// negates an array in place.
struct StepBenchOptions {
  std::string optimizer = "adamw";  // one of step_bench_optimizers()
  int64_t parameters = 33554432;    // elements in all; 1 or more
  int64_t tensors = 8;              // that they are spread over evenly; 1 to parameters
  int rounds = 7;                   // each of step, copy and pass in place, then of LibTorch's step
  bool peer = true;                 // false: without LibTorch's optimizer
  std::string device = "cpu";       // cpu, cuda or cuda:N
  std::string moments = "fp32";     // fp32, bf16 or int8
  /// master (fp32 parameters with bf16 copies), or bf16 parameters: split, split24, stochastic.
  std::string weight_mode = "master";
};

/// Times are the least of all rounds; ms_spread is by how much the median is above it (0.1: 10 %).
/// Bytes are counted from the tables of the step. gb are 10^9 bytes.
///
/// A copy of n bytes counts 2 n, though most processors also read the destination before they write
/// it. The step writes where it has just read, so it can be above a copy (1.5 at most, if the
/// destination is read). The pass in place writes where it has read, too: it is the machine's
/// limit.
struct StepBenchResult {
  /// The timed optimizer, path of the kernels, and device.
  std::string optimizer, kernels, device;
  /// Elements and tensors that the optimizer has.
  int64_t parameters = 0, tensors = 0;
  int threads = 0;  // LibTorch's threads on a CPU
  /// Time of a step, and its spread.
  double ms = 0, ms_spread = 0;
  double bytes_per_parameter = 0;        // moved by a step
  double state_bytes_per_parameter = 0;  // held by the optimizer
  double held_bytes_per_parameter = 0;   // these, the parameter, its copy and its gradient
  /// The rates of a step and of a copy, and the first over the second.
  double gb_per_s = 0, copy_gb_per_s = 0, fraction_of_copy = 0;
  /// The rate of a pass in place, and the step's rate over it.
  double in_place_gb_per_s = 0, fraction_of_in_place = 0;
  double torch_optim_ms = 0;         // 0: LibTorch has no such optimizer, or it was not asked for
  double torch_optim_over_demi = 0;  // `torch_optim_ms` over `ms`; 0: not measured
  double host_us = 0;                // one step over 40 tensors of 64 elements
  double host_loop_us = 0;           // the same with unscale_, clip_grad_norm_ and update around it
  double torch_optim_host_us = 0;    // LibTorch's, over the same tensors
};

/// The names of the optimizers that can be timed.
DEMI_API const std::vector<std::string>& step_bench_optimizers();

/// First checks that the kernels in use give bit for bit what the reference gives over some steps;
/// throws TrainingError if they do not, and nothing is timed. Throws UsageError for options out
/// of range.
DEMI_API StepBenchResult bench_step(const StepBenchOptions& options);

}  // namespace demi::bench
