#include "demi/kernels/cpu_kernels.h"

#include "demi/core/instruction_set.h"
#include "demi/kernels/cpu/tables.h"

namespace demi::kernels {

const CpuKernels* cpu_kernels(Path path) {
  if (path == Path::reference) return reference_kernels();
  if (path == Path::avx2 && instruction_set().avx2) return avx2_kernels();
  if (path == Path::avx512 && instruction_set().avx512) return avx512_kernels();
  return nullptr;
}

const CpuKernels* cpu_kernels() { return cpu_kernels(path_for(Device::cpu)); }

}  // namespace demi::kernels
