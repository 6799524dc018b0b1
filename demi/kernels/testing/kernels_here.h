#pragma once

#include <vector>

#include "demi/kernels/cpu_kernels.h"

namespace demi::kernels::testing {

/// The kernels that this machine runs, the reference first.
inline std::vector<const CpuKernels*> kernels_here() {
  std::vector<const CpuKernels*> found;
  for (const Path path : {Path::reference, Path::avx2, Path::avx512})
    if (const CpuKernels* kernels = cpu_kernels(path)) found.push_back(kernels);
  return found;
}

}  // namespace demi::kernels::testing
