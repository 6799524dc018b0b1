#pragma once

#include <ATen/core/Tensor.h>

#include "demi/core/export.h"
#include "demi/kernels/bf16_product.h"

namespace demi::rnn {

/// Products with one matrix b of shape (k, n), 16-bit, CPU, for steps too small for a call of
/// at::mm each: packed once, then c = a b or c += a b with sums in FP32. On a processor with bf16
/// products a bf16 matrix is multiplied as it is, by AMX through LibTorch's block products or by
/// AVX512_BF16 through a kernel of our own (LibTorch has none for it); elsewhere as FP32, which
/// holds its values exactly, so that only the order of the sums differs. Calls from several threads
/// may overlap.
class DEMI_API StepProduct {
 public:
  explicit StepProduct(const at::Tensor& b);

  /// Whether `a` is wanted in FP32 (with values rounded to b's dtype) and not in b's dtype.
  bool reads_fp32() const { return !own_ && panel_ == 0; }

  /// a (rows, k), c (rows, n), both dense. When a thread has made its last call: release().
  void operator()(const void* a, float* c, int64_t rows, bool add) const;
  static void release();

  /// Whether LibTorch multiplies blocks of FP32 on this machine, tried once.
  static bool available();

  /// Whether products of bf16 are done by the processor.
  static bool bf16_available();

 private:
  static bool amx_available();  // LibTorch's block products of bf16, tried once

  int64_t k_, n_;
  const kernels::Bf16Product* own_ = nullptr;  // multiplies b_ as it packed it
  int64_t panel_ = 0;                          // columns of a panel that LibTorch packed
  at::Tensor b_;                               // neither: (k, n) in FP32
};

}  // namespace demi::rnn
