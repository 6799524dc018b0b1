#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "demi/core/export.h"

namespace demi::bench {

/// A way to compute a matrix product.
struct ProductKind {
  std::string dtype;       // fp32, tf32, fp16 or bf16
  bool in_region = false;  // in an autocast region of demi's; false: LibTorch's own product
  bool casts = false;      // 16-bit operands to FP32, where the product is computed and rounded
  bool operator==(const ProductKind&) const = default;
};

/// All kinds that the device has: fp32, tf32 on CUDA, and fp16 and bf16 plain and in a region.
DEMI_API std::vector<ProductKind> product_kinds(c10::Device device);

/// The product of two matrices (n, n) of random numbers from the standard normal distribution,
/// which are rounded to the kind's dtype before anything is timed. FP32 is without TF32; LibTorch's
/// settings are put back after each call.
class DEMI_API SquareProduct {
 public:
  SquareProduct(ProductKind kind, int64_t size, c10::Device device);

  /// Computes so many products, one after the other. Does not wait for the device.
  void run(int64_t times = 1);

  /// The greatest distance of the first rows of the result from the product of the same numbers in
  /// FP64, over the norm of that. Waits for the device.
  double error();

  /// Multiplications and additions.
  double flop() const;

  /// Bytes of two operands and a result: what a product has to move at least.
  double bytes() const;

  /// The kind of the product.
  const ProductKind& kind() const { return kind_; }

 private:
  ProductKind kind_;
  int64_t size_;
  at::Tensor a_, b_;  // (n, n) of the kind's dtype
  at::Tensor result_;
};

/// The greatest error() of a product that is right: of the format's rounding, with room for the
/// order of the sums. 2^-18 for fp32, 2^-9 for tf32 and fp16, 2^-6 for bf16.
DEMI_API double error_bound(const ProductKind& kind);

}  // namespace demi::bench
