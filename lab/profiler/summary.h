#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "demi/core/export.h"
#include "lab/profiler/event.h"

namespace demi::profiler {

/// All calls of one op in one dtype. Numbers are those of a step.
struct OpUse {
  std::string name;   // "aten::addmm"
  std::string dtype;  // in which it computed: "bf16"; of a cast "fp32 to bf16"; "" without numbers
  double calls = 0;   // a step
  double ms = 0;      // in itself, without the ops that it calls; on a device of its kernels
  double gflop = 0;   // of products and convolutions, 10^9
  bool is_low = false;               // fp16 or bf16, and no cast
  bool is_cast = false;              // from or to 16 bits, between floating point dtypes
  std::vector<std::string> kernels;  // that ran, the one with the most calls first
  bool tensor_cores = false;         // that its kernels' names speak of
};

/// A place where the host waits for numbers of the device.
struct Sync {
  std::string place;  // "forward: aten::item after aten::addmm"
  double calls = 0;   // a step
};

/// The work of the recorded steps. Times and counts are those of a step.
struct Summary {
  std::int64_t steps = 0;  // that were recorded
  bool is_device = false;  // kernels of a device were recorded: times of ops are theirs
  double step_ms = 0;      // while recorded
  std::vector<std::pair<std::string, double>> phase_ms;  // in the order of profile::kPhaseNames
  std::vector<OpUse> ops;                                // the longest first
  double ops_ms = 0;                                     // of all ops
  /// Casts from or to 16 bits, and their time.
  double casts = 0, cast_ms = 0;
  double low_time_share = 0;     // of the ops' time, in ops of 16 bits
  double low_flops_share = 0;    // of the operations; 0 if there are none
  double gflop = 0;              // of the step
  double tensor_core_share = 0;  // of the kernels' time; 0 on a CPU
  /// Share of a step without an op (CPU; demi's own kernels, unscaling, clipping and the
  /// optimizer's step count as one) or without a kernel (a device).
  double idle_share = 0;
  double kernels = 0;  // a step: of a device, else ops that call no others and compute
  /// A step: calls of the host that start work of a device. That of a graph counts once, whatever
  /// its kernels; 0 on a CPU.
  double launches = 0;
  double busy_ms = 0;           // a step: time in which a device had work; 0 on a CPU
  double short_share = 0;       // of the kernels, under kShortMs
  double short_time_share = 0;  // of their time
  std::vector<Sync> syncs;      // the most frequent first

  /// Waits of the host for the device, of all places together.
  double syncs_of_a_step() const {
    double sum = 0;
    for (const Sync& sync : syncs) sum += sync.calls;
    return sum;
  }
};

inline constexpr double kShortMs = 0.01;  // 10 us: about what a launch costs the host

/// Sums up events as Recording::finish returns them, over that many steps. Events outside the
/// phases of a step (demi::data to demi::other) do not count: steps are those of a Trainer, or of a
/// loop that enters the phases of a profile::PhaseTimer. Throws UsageError if no event is in a
/// phase.
DEMI_API Summary summarise(const std::vector<Event>& events, std::int64_t steps);

/// Whether a CUDA kernel of that name computes on tensor cores, by the names of cuBLAS, CUTLASS and
/// cuDNN.
DEMI_API bool uses_tensor_cores(const std::string& kernel);

/// LibTorch's spelling of a dtype as demi spells it: "bf16"; "" if it is no floating point.
DEMI_API std::string dtype_of(const std::string& libtorch);

}  // namespace demi::profiler
