#pragma once

#include "demi/kernels/attention.h"
#include "demi/kernels/bf16_product.h"
#include "demi/kernels/cpu_kernels.h"

namespace demi::kernels {

/// Each path's table of functions; null if the build has no such instructions. cpu_kernels() and
/// bf16_product() ask what the machine has.
const CpuKernels* reference_kernels();
const CpuKernels* avx2_kernels();
const CpuKernels* avx512_kernels();
const Bf16Product* avx512_bf16_product();
const AttentionKernels* avx512_attention();

}  // namespace demi::kernels
