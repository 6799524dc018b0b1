#include "demi/kernels/cpu/tables.h"

// Compiled with this instruction set's own flags (CMakeLists.txt). A stub if the compiler has none.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "demi/kernels/cpu/attention.h"
#include "demi/kernels/cpu/vector_kernels.h"

namespace demi::kernels {
namespace {

constexpr CpuKernels kAvx512 = vector_kernels(Path::avx512);

}  // namespace

const CpuKernels* avx512_kernels() { return &kAvx512; }
const AttentionKernels* avx512_attention() { return &kAttention; }

}  // namespace demi::kernels
#else
namespace demi::kernels {
const CpuKernels* avx512_kernels() { return nullptr; }
const AttentionKernels* avx512_attention() { return nullptr; }
}  // namespace demi::kernels
#endif
