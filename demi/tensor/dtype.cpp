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
    case c10::ScalarType::Float8_e4m3fn:
      return "fp8_e4m3";
    case c10::ScalarType::Float8_e5m2:
      return "fp8_e5m2";
    case c10::ScalarType::Long:
      return "int64";
    case c10::ScalarType::Int:
      return "int32";
    case c10::ScalarType::Short:
      return "int16";
    case c10::ScalarType::Char:
      return "int8";
    case c10::ScalarType::UInt64:
      return "uint64";
    case c10::ScalarType::UInt32:
      return "uint32";
    case c10::ScalarType::UInt16:
      return "uint16";
    case c10::ScalarType::Byte:
      return "uint8";
    case c10::ScalarType::ComplexFloat:
      return "complex64";
    case c10::ScalarType::Bool:
      return "bool";
    default:
      return c10::toString(dtype);
  }
}

}  // namespace demi::tensor
