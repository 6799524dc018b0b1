#include "demi/kernels/cpu/tables.h"

// Compiled with this instruction set's own flags (CMakeLists.txt); where the compiler has none, a
// stub.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "demi/kernels/cpu/arrays.h"
#include "demi/kernels/cpu/lstm.h"
#include "demi/kernels/cpu/passes.h"

namespace demi::kernels {
namespace {

constexpr CpuKernels kAvx512 = {Path::avx512, measure_pass, update_pass,       apply_trust_pass,
                                narrow_array, widen_array,  accumulate_array,  unscale_array,
                                clamp_array,  lerp_array,   lstm_forward_step, lstm_backward_step};

}  // namespace

const CpuKernels* avx512_kernels() { return &kAvx512; }

}  // namespace demi::kernels
#else
namespace demi::kernels {
const CpuKernels* avx512_kernels() { return nullptr; }
}  // namespace demi::kernels
#endif
