#pragma once

#include <vector>

#include "demi/core/export.h"

namespace demi {

/// Flushes subnormal numbers to 0 until the end of the scope: FP32 and FP64 numbers below the
/// normal range (1.2e-38, 2.2e-308) are read as 0 and results in that range become 0, in this
/// thread and in the OpenMP threads that share its work. x86: MXCSR's FTZ and DAZ; AArch64:
/// FPCR.FZ; no effect elsewhere. fp16's subnormals are normal numbers in FP32 and stay; bf16's are
/// subnormal in FP32, too, and become 0.
///
/// Intel's processors make every subnormal result by microcode, about 150 cycles each. The gradient
/// of a recurrent network shrinks by a factor at each time step and becomes subnormal after about
/// 150 of them; Adam's moments of an embedding's rare rows do so after about 800 steps.
/// demi::Trainer holds one of these during a fit on a CPU; a training loop of your own needs its
/// own. at::globalContext().setFlushDenormal changes the calling thread only.
///
/// Must be destroyed in the thread that made it.
class DEMI_API FlushSubnormals {
 public:
  /// Does nothing if `on` is false.
  [[nodiscard]] explicit FlushSubnormals(bool on = true);
  ~FlushSubnormals();
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
  std::vector<unsigned long> before_;  // the control word of each thread; empty if off
};

/// Whether the calling thread flushes them, by whatever means.
DEMI_API bool flushes_subnormals();

}  // namespace demi
