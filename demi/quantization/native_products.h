#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "demi/core/export.h"
#include "demi/quantization/quantization.h"

namespace demi::quantization {

/// Whether layers multiply codes of E4M3 and E5M2 with FP32 scales of tensors or rows (recipes fp8
/// and fp8:rowwise) by LibTorch's _scaled_mm, in place of the emulation. On CUDA that is the
/// hardware's product (compute capability 8.9 and newer), on a CPU another emulation. Both
/// dimensions of each operand are multiples of 16; products of other sizes, and of two E5M2
/// operands, stay emulated. A result of rows is rounded to bf16 before a bias is added. Default:
/// false, or what DEMI_FP8_PRODUCTS says (emulated, native). For the process; any thread.
DEMI_API void set_native_products(bool native);
/// The value that is set. Throws UsageError for another word in DEMI_FP8_PRODUCTS.
DEMI_API bool native_products();

/// A matrix of codes as a product reads it.
struct CodesOfProduct {
  const Quantized& quantized;  // of two dimensions
  bool is_transposed;          // the product reads the transposed matrix
};

/// left (m, k) right (k, n) by _scaled_mm, in FP32 or, with scales of rows, bf16. Empty where
/// native_products() says that it is emulated. Throws DeviceError if the device lacks such
/// products.
std::optional<at::Tensor> native_product(const CodesOfProduct& left, const CodesOfProduct& right);

}  // namespace demi::quantization
