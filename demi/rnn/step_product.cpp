#include "demi/rnn/step_product.h"

#include <ATen/native/CPUBlas.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <vector>

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

void multiply_panels(const at::BFloat16* a, const at::BFloat16* panels, float* c, int64_t rows,
                     int64_t k, int64_t n, int64_t width, bool add) {
  for (int64_t column = 0; column < n; column += width)
    blas::brgemm(rows, width, k, k, width, n, add, a, panels + column * k, c + column,
                 /*is_vnni=*/true);
}

void multiply_fp32_panels(const float* a, const float* panels, float* c, int64_t rows, int64_t k,
                          int64_t n, int64_t width, bool add) {
  for (int64_t column = 0; column < n; column += width)
    blas::brgemm(rows, width, k, k, width, n, add, a, panels + column * k, c + column,
                 /*is_vnni=*/false);
}

at::Tensor packed_by(const kernels::Bf16Product& own, const at::Tensor& b) {
  const int64_t k = b.size(0), n = b.size(1);
  at::Tensor to = at::empty({kernels::Bf16Product::packed_size(k, n)}, b.options());
  own.pack(static_cast<uint16_t*>(to.mutable_data_ptr()),
           static_cast<const uint16_t*>(b.const_data_ptr()), k, n, b.stride(0), b.stride(1));
  return to;
}

// Small whole numbers: every product and sum is exact in any order.
template <class Multiply>
bool multiplies(Multiply multiply) {
  constexpr int64_t kRows = 5, kInner = 6, kColumns = 128;  // two panels
  std::vector<float> a(kRows * kInner), b(kInner * kColumns), c(kRows * kColumns, 1);
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i % 7) - 3;
  for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(i % 11) - 5;
  try {
    multiply(a, b, c.data(), kRows, kInner, kColumns);
  } catch (const std::exception&) {
    return false;  // not in this LibTorch, or not on this processor
  }
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < kColumns; ++j) {
      float sum = 1;
      for (int64_t l = 0; l < kInner; ++l) sum += a[i * kInner + l] * b[l * kColumns + j];
      if (c[i * kColumns + j] != sum) return false;
    }
  }
  return true;
}

}  // namespace

bool StepProduct::available() {
  static const bool result =
      multiplies([](const auto& a, const auto& b, float* c, int64_t rows, int64_t k, int64_t n) {
        blas::brgemm(rows, n, k, k, n, n, /*add_C=*/true, a.data(), b.data(), c, /*is_vnni=*/false);
      });
  return result;
}

bool StepProduct::bf16_available() { return amx_available() || kernels::bf16_product(); }

bool StepProduct::amx_available() {
  static const bool result =
      blas::could_pack(at::kBFloat16) &&
      multiplies([](const auto& a, const auto& b, float* c, int64_t rows, int64_t k, int64_t n) {
        at::Tensor low = at::empty({k, n}, at::kBFloat16);
        std::copy(b.begin(), b.end(), low.mutable_data_ptr<at::BFloat16>());
        const std::vector<at::BFloat16> low_a(a.begin(), a.end());
        const at::Tensor panels = packed(low, panel_of(n));
        multiply_panels(low_a.data(), panels.const_data_ptr<at::BFloat16>(), c, rows, k, n,
                        panel_of(n), /*add=*/true);
        release();
      });
  return result;
}

StepProduct::StepProduct(const at::Tensor& b) : k_(b.size(0)), n_(b.size(1)) {
  if (b.scalar_type() == at::kBFloat16) {
    // Two rows of bf16 are packed into one.
    if (k_ % 2 == 0 && amx_available()) panel_ = panel_of(n_);
    if (!panel_) own_ = kernels::bf16_product();
  }
  b_ = own_ ? packed_by(*own_, b) : panel_ ? packed(b, panel_) : fp32_panels(b, fp32_panel_of(n_));
}

void StepProduct::operator()(const void* a, float* c, int64_t rows, bool add) const {
  if (own_)
    own_->multiply(static_cast<const uint16_t*>(a),
                   static_cast<const uint16_t*>(b_.const_data_ptr()), c, rows, k_, n_, add);
  else if (panel_)
    multiply_panels(static_cast<const at::BFloat16*>(a), b_.const_data_ptr<at::BFloat16>(), c, rows,
                    k_, n_, panel_, add);
  else
    multiply_fp32_panels(static_cast<const float*>(a), b_.const_data_ptr<float>(), c, rows, k_, n_,
                         fp32_panel_of(n_), add);
}

void StepProduct::release() { blas::brgemm_release(); }

}  // namespace demi::rnn
