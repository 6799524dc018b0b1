#pragma once

#include <ATen/core/Tensor.h>

#include "demi/core/export.h"
#include "demi/kernels/bf16_product.h"

namespace demi::rnn {

/// Products with one 16-bit CPU matrix b of shape (k, n), for steps that are too small for a call
/// of at::mm each. The matrix is packed once; then c = a b or c += a b with FP32 sums. If the
/// processor has bf16 products, a bf16 matrix is multiplied as it is: by AMX through LibTorch's
/// block products, or by AVX512_BF16 through a kernel of demi's (LibTorch has none). Otherwise, and
/// if bf16_products() says FP32, it is multiplied in FP32, which holds its values exactly, so only
/// the order of the sums differs.
/// Any number of threads at once.
class DEMI_API StepProduct {
 public:
  explicit StepProduct(const at::Tensor& b);

  /// Whether `a` must be FP32 (with values rounded to b's dtype) instead of b's dtype.
  bool reads_fp32() const { return !own_ && panel_ == 0; }

  /// c = a b, or c += a b with `add`: a (rows, k), c (rows, n), both dense. Each thread calls
  /// release() after its last product.
  void operator()(const void* a, float* c, int64_t rows, bool add) const;
  static void release();

 private:
  int64_t k_, n_;
  const kernels::Bf16Product* own_ = nullptr;  // demi's kernel, if it packed b_; else null
  int64_t panel_ = 0;                          // columns of a panel if LibTorch packed b_; else 0
  at::Tensor b_;                               // packed; or panels of FP32
};

}  // namespace demi::rnn
