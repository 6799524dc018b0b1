#include "demi/kernels/attention.h"

#include "demi/kernels/cpu/tables.h"
#include "demi/kernels/path.h"

namespace demi::kernels {

const AttentionKernels* attention_kernels() {
  return path_for(Device::cpu) == Path::avx512 ? avx512_attention() : nullptr;
}

}  // namespace demi::kernels
