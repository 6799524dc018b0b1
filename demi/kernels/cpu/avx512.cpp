#include "demi/kernels/cpu/tables.h"

namespace demi::kernels {
const CpuKernels* avx512_kernels() { return nullptr; }
}  // namespace demi::kernels
