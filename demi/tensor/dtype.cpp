#include "demi/tensor/dtype.h"

namespace demi::tensor {

std::string name_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Half:
      return "fp16";
    case c10::ScalarType::BFloat16:
      return "bf16";
    case c10::ScalarType::Float:
      return "fp32";
    case c10::ScalarType::Double:
      return "fp64";
    default:
      return c10::toString(dtype);
  }
}

}  // namespace demi::tensor
