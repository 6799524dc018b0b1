#include "demi/products/matrix_product.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "demi/products/convert.h"
#include "demi/products/no_autocast.h"
#include "demi/products/through_fp32.h"
#include "demi/tensor/kept_results.h"

namespace demi::products {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Elements of the larger operand that are in FP32 at a time: 8 MiB, which a level 2 or 3 cache
// holds, and a multiple of the columns that FP32 products work on.
constexpr int64_t kPiece = 1 << 21;
constexpr int64_t kColumns = 64;

/// The part of a long side that is taken at a time beside `other`.
int64_t at_once(int64_t other) { return std::max(kColumns, kPiece / other / kColumns * kColumns); }

struct Scales {
  double beta, alpha;
};

/// sums = beta addend + alpha a b, all FP32; addend may be undefined.
void multiply_fp32(at::Tensor& sums, const at::Tensor& addend, const at::Tensor& a,
                   const at::Tensor& b, const Scales& scales) {
  if (addend.defined()) {
    at::addmm_out(sums, addend, a, b, scales.beta, scales.alpha);
  } else {
    at::mm_out(sums, a, b);
    if (scales.alpha != 1) sums.mul_(scales.alpha);
  }
}

/// out (m, n) = round(beta addend + alpha a b) for a long n: a whole in FP32, b and out some
/// columns at a time. addend is undefined or (m, n) in FP32.
void multiply_wide(const at::Tensor& out, const at::Tensor& addend, const at::Tensor& a,
                   const at::Tensor& b, const Scales& scales) {
  Widened widened_a, widened_b;
  const at::Tensor& wide_a = widened_a(a);
  const int64_t n = b.size(1), step = at_once(std::max(b.size(0), a.size(0)));
  at::Tensor sums;
  for (int64_t column = 0; column < n; column += step) {
    const int64_t width = std::min(step, n - column);
    const auto piece = [&](const at::Tensor& t) {
      return t.defined() ? t.narrow(1, column, width) : t;
    };
    if (!sums.defined() || sums.size(1) != width) sums = fp32_like(piece(out));
    multiply_fp32(sums, piece(addend), wide_a, widened_b(piece(b)), scales);
    convert(piece(out), sums);
  }
}

/// Multiplies as multiply_wide() does, for a long k: sums over some of a's columns and b's rows at
/// a time, with the whole of out in FP32.
void multiply_deep(const at::Tensor& out, const at::Tensor& addend, const at::Tensor& a,
                   const at::Tensor& b, const Scales& scales) {
  Widened widened_a, widened_b;
  const int64_t k = b.size(0), step = at_once(std::max(a.size(0), b.size(1)));
  at::Tensor sums = fp32_like(out);
  for (int64_t first = 0; first < k; first += step) {
    const int64_t depth = std::min(step, k - first);
    const at::Tensor &left = widened_a(a.narrow(1, first, depth)),
                     &right = widened_b(b.narrow(0, first, depth));
    if (first == 0)
      multiply_fp32(sums, addend, left, right, scales);
    else
      sums.addmm_(left, right, 1, scales.alpha);
  }
  convert(out, sums);
}

void multiply(const at::Tensor& out, const at::Tensor& addend, const at::Tensor& a,
              const at::Tensor& b, const Scales& scales) {
  const int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  if (k > std::max(m, n)) return multiply_deep(out, addend, a, b, scales);
  if (m < n) return multiply_wide(out, addend, a, b, scales);
  multiply_wide(out.t(), addend.defined() ? addend.t() : addend, b.t(), a.t(), scales);
}

/// Multiplies a batch: small matrices some at a time, large ones one by one.
void multiply_batch(const at::Tensor& out, const at::Tensor& addend, const at::Tensor& a,
                    const at::Tensor& b, const Scales& scales) {
  const int64_t batch = a.size(0), largest = std::max({a.numel(), b.numel(), out.numel()}) / batch;
  const auto part = [](const at::Tensor& t, int64_t first, int64_t n) {
    return t.defined() ? t.narrow(0, first, n) : t;
  };
  if (largest > kPiece) {
    for (int64_t i = 0; i < batch; ++i)
      multiply(out[i], addend.defined() ? addend[i] : addend, a[i], b[i], scales);
    return;
  }
  const int64_t step = std::max<int64_t>(1, kPiece / largest);
  for (int64_t first = 0; first < batch; first += step) {
    const int64_t n = std::min(step, batch - first);
    const at::Tensor left = part(a, first, n).to(at::kFloat),
                     right = part(b, first, n).to(at::kFloat);
    const at::Tensor sums = addend.defined() ? at::baddbmm(part(addend, first, n), left, right,
                                                           scales.beta, scales.alpha)
                                             : at::bmm(left, right);
    if (!addend.defined() && scales.alpha != 1) sums.mul_(scales.alpha);
    part(out, first, n).copy_(sums);
  }
}

at::Tensor computed(const at::Tensor& addend, const at::Tensor& a, const at::Tensor& b,
                    const Scales& scales) {
  const NoAutocast no_autocast;
  const at::AutoDispatchBelowADInplaceOrView below;
  auto sizes = a.sizes().vec();
  sizes.back() = b.size(-1);
  const at::Tensor out = at::empty(sizes, a.options());
  // Converted before it is spread over the rows.
  const at::Tensor expanded =
      addend.defined()
          ? at::empty(addend.sizes(), a.options().dtype(at::kFloat)).copy_(addend).expand(sizes)
          : addend;
  (a.dim() == 2 ? multiply : multiply_batch)(out, expanded, a, b, scales);
  return out;
}

/// Keeps the product of two matrices (tensor::kept). Products of a batch are often attention's,
/// which are not kept.
at::Tensor multiplied(const at::Tensor& addend, const at::Tensor& a, const at::Tensor& b,
                      const Scales& scales) {
  const auto compute = [&] { return computed(addend, a, b, scales); };
  return a.dim() == 2 ? tensor::kept("demi::products::matrix_product", compute) : compute();
}

/// alpha a b in the order of memory of `like`, as a gradient is wanted: where its columns are
/// dense, that is the transposed product.
at::Tensor product_like(const at::Tensor& like, const at::Tensor& a, const at::Tensor& b,
                        double alpha) {
  const auto t = [](const at::Tensor& matrix) { return matrix.transpose(-1, -2); };
  if (like.stride(-2) == 1 && like.stride(-1) != 1)
    return t(matrix_product({}, t(b), t(a), 1, alpha));
  return matrix_product({}, a, b, 1, alpha);
}

// An absent addend has no edge of its own, so it comes last.
struct ProductFunction : torch::autograd::Function<ProductFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& a, const at::Tensor& b,
                            const std::optional<at::Tensor>& addend, double beta, double alpha) {
    context->save_for_backward({a, b});
    context->saved_data["beta"] = beta;
    context->saved_data["alpha"] = alpha;
    if (addend) context->saved_data["addend"] = addend->sizes();
    return multiplied(addend.value_or(at::Tensor()), a, b, {beta, alpha});
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const NoAutocast no_autocast;
    const auto saved = context->get_saved_variables();
    const at::Tensor &a = saved[0], &b = saved[1], &gradient = gradients[0];
    const double alpha = context->saved_data["alpha"].toDouble(),
                 beta = context->saved_data["beta"].toDouble();
    variable_list result(5);
    if (!gradient.defined()) return result;
    const auto addend = context->saved_data.find("addend");
    if (addend != context->saved_data.end() && context->needs_input_grad(2)) {
      const at::Tensor scaled = beta == 1 ? gradient : gradient * beta;
      result[2] = at::sum_to(scaled, addend->second.toIntVector());
    }
    if (context->needs_input_grad(0))
      result[0] = product_like(a, gradient, b.transpose(-1, -2), alpha);
    if (context->needs_input_grad(1))
      result[1] = product_like(b, a.transpose(-1, -2), gradient, alpha);
    return result;
  }
};

/// LibTorch's product, for example in backward with a batch of gradients (vmap).
at::Tensor libtorchs(const at::Tensor& addend, const at::Tensor& a, const at::Tensor& b,
                     double beta, double alpha) {
  const bool is_batch = a.dim() == 3;
  if (addend.defined())
    return is_batch ? at::baddbmm(addend, a, b, beta, alpha) : at::addmm(addend, a, b, beta, alpha);
  const at::Tensor product = is_batch ? at::bmm(a, b) : at::mm(a, b);
  return alpha == 1 ? product : product * alpha;
}

}  // namespace

at::Tensor matrix_product(const at::Tensor& addend, const at::Tensor& a, const at::Tensor& b,
                          double beta, double alpha) {
  if (!takes({&addend, &a, &b})) return libtorchs(addend, a, b, beta, alpha);
  const bool differentiates =
      at::GradMode::is_enabled() &&
      (a.requires_grad() || b.requires_grad() || (addend.defined() && addend.requires_grad()));
  if (!differentiates) return multiplied(addend, a, b, {beta, alpha});
  return ProductFunction::apply(a, b, addend.defined() ? std::optional(addend) : std::nullopt, beta,
                                alpha);
}

}  // namespace demi::products
