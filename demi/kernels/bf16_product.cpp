#include "demi/kernels/bf16_product.h"

#include "demi/core/instruction_set.h"
#include "demi/kernels/cpu/tables.h"
#include "demi/kernels/path.h"

namespace demi::kernels {

const Bf16Product* bf16_product() {
  return onednn_instruction_set().avx512_bf16 && path_for(Device::cpu) == Path::avx512
             ? avx512_bf16_product()
             : nullptr;
}

}  // namespace demi::kernels
