#pragma once

#include "demi/kernels/bf16_product.h"
#include "demi/kernels/cpu_kernels.h"

namespace demi::kernels {

/// Each path's table of functions; null where the build has no such instructions. What the machine
/// has, path_probe.h asks.
const CpuKernels* reference_kernels();
const CpuKernels* avx2_kernels();
const CpuKernels* avx512_kernels();
const Bf16Product* avx512_bf16_product();

}  // namespace demi::kernels
