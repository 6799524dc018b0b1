#include "demi/kernels/cpu/tables.h"

// Compiled with this instruction set's own flags (CMakeLists.txt); where the compiler has none, a
// stub.
#if defined(__AVX2__) && defined(__F16C__)
#include "demi/kernels/cpu/arrays.h"
#include "demi/kernels/cpu/lstm.h"
#include "demi/kernels/cpu/passes.h"

namespace demi::kernels {
namespace {

constexpr CpuKernels kAvx2 = {Path::avx2,   measure_pass, update_pass,       apply_trust_pass,
                              narrow_array, widen_array,  accumulate_array,  unscale_array,
                              clamp_array,  lerp_array,   lstm_forward_step, lstm_backward_step};

}  // namespace

const CpuKernels* avx2_kernels() { return &kAvx2; }

}  // namespace demi::kernels
#else
namespace demi::kernels {
const CpuKernels* avx2_kernels() { return nullptr; }
}  // namespace demi::kernels
#endif
