#include "demi/rnn/step_product.h"

#include <ATen/native/CPUBlas.h>
#include <ATen/ops/empty.h>

#include "demi/core/bf16_products.h"
#include "demi/products/block_product.h"

namespace demi::rnn {
namespace {

namespace blas = at::native::cpublas;

// The widths that oneDNN packs, widest first; 0 if none divides n.
int64_t panel_of(int64_t n) {
  for (const int64_t width : {64, 48, 32, 16})
    if (n % width == 0) return width;
  return 0;
}

// The widest of these panels, or one panel of all n columns.
int64_t fp32_panel_of(int64_t n) {
  const int64_t width = panel_of(n);
  return width ? width : n;
}

// (k, n) as (n / width, k, width) in FP32. A whole matrix with 1,024 columns would have its rows a
// page apart, which all fall into the same few sets of a cache.
at::Tensor fp32_panels(const at::Tensor& b, int64_t width) {
  return b.to(at::kFloat).reshape({b.size(0), -1, width}).transpose(0, 1).contiguous();
}

// Panels of `width` columns, one after the other, each packed as the product wants it.
at::Tensor packed(const at::Tensor& b, int64_t width) {
  const int64_t k = b.size(0), n = b.size(1);
  const at::Tensor from = b.contiguous();
  at::Tensor to = at::empty({n / width, k * width}, b.options());
  const auto* source = from.const_data_ptr<at::BFloat16>();
  auto* target = to.mutable_data_ptr<at::BFloat16>();
  for (int64_t column = 0; column < n; column += width)
    blas::pack(k, width, n, width, at::kBFloat16, at::kBFloat16, source + column,
               target + column * k);
  return to;
}

at::Tensor packed_by(const kernels::Bf16Product& own, const at::Tensor& b) {
  const int64_t k = b.size(0), n = b.size(1);
  at::Tensor to = at::empty({kernels::Bf16Product::packed_size(k, n)}, b.options());
  own.pack(static_cast<uint16_t*>(to.mutable_data_ptr()),
           static_cast<const uint16_t*>(b.const_data_ptr()), k, n, b.stride(0), b.stride(1));
  return to;
}

}  // namespace

StepProduct::StepProduct(const at::Tensor& b) : k_(b.size(0)), n_(b.size(1)) {
  if (b.scalar_type() == at::kBFloat16 && bf16_products() == Bf16Products::bf16) {
    // Two rows of bf16 are packed into one.
    if (k_ % 2 == 0 && products::has_bf16_block_products()) panel_ = panel_of(n_);
    if (!panel_) own_ = kernels::bf16_product();
  }
  b_ = own_ ? packed_by(*own_, b) : panel_ ? packed(b, panel_) : fp32_panels(b, fp32_panel_of(n_));
}

void StepProduct::operator()(const void* a, float* c, int64_t rows, bool add) const {
  if (own_)
    own_->multiply(static_cast<const uint16_t*>(a), k_,
                   static_cast<const uint16_t*>(b_.const_data_ptr()), k_, c, n_, rows, k_, n_, add);
  else if (panel_)
    products::multiply(static_cast<const at::BFloat16*>(a), k_,
                       {b_.const_data_ptr<at::BFloat16>(), k_, panel_}, c, n_, rows, k_, n_, add);
  else
    products::multiply(static_cast<const float*>(a), k_,
                       {b_.const_data_ptr<float>(), k_, fp32_panel_of(n_)}, c, n_, rows, k_, n_,
                       add);
}

void StepProduct::release() { products::release_block_products(); }

}  // namespace demi::rnn
