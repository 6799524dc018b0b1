#include "demi/kernels/cpu/tables.h"

// Compiled with this instruction set's own flags (CMakeLists.txt). A stub if the compiler has none.
#if defined(__AVX2__) && defined(__F16C__)
#include "demi/kernels/cpu/vector_kernels.h"

namespace demi::kernels {
namespace {

constexpr CpuKernels kAvx2 = vector_kernels(Path::avx2);

}  // namespace

const CpuKernels* avx2_kernels() { return &kAvx2; }

}  // namespace demi::kernels
#else
namespace demi::kernels {
const CpuKernels* avx2_kernels() { return nullptr; }
}  // namespace demi::kernels
#endif
