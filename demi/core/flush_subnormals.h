#pragma once

#include <vector>

#include "demi/core/export.h"

namespace demi {

/// Until the end of the scope FP32 and FP64 numbers below the normal range (1.2e-38, 2.2e-308)
/// count as 0 and come out as 0, in this thread and in the OpenMP threads that share its work (x86:
/// MXCSR's FTZ and DAZ; AArch64: FPCR.FZ; elsewhere nothing). fp16's subnormals are normal numbers
/// in FP32 and stay; bf16's are FP32's and go.
///
/// Intel's processors make every subnormal result by microcode, about 150 cycles each. The gradient
/// of a recurrent network falls by a factor a time step and gets there after about 150 steps; so do
/// Adam's moments of an embedding's rare rows after about 800. demi::Trainer holds one for a fit on
/// the CPU; a loop of your own can, too.
///
/// Ends in the thread in which it began.
class DEMI_API FlushSubnormals {
 public:
  /// `on` false: nothing changes.
  explicit FlushSubnormals(bool on = true);
  ~FlushSubnormals();
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
  std::vector<unsigned long> before_;  // the control word of each thread; empty: off
};

}  // namespace demi
