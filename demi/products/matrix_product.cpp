#include "demi/products/matrix_product.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "demi/kernels/cpu_kernels.h"
#include "demi/products/convert.h"
#include "demi/products/multiplication.h"
#include "demi/products/no_autocast.h"
#include "demi/products/through_fp32.h"
#include "demi/tensor/kept_results.h"

namespace demi::products {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Sums are split until there are so many tasks, into parts of at least so many numbers.
constexpr int64_t kTasks = 16, kLeastSum = 2048;

/// With rows or columns of numbers next to each other.
at::Tensor dense_one_way(const at::Tensor& matrices) {
  return matrices.stride(-1) == 1 || matrices.stride(-2) == 1 ? matrices : matrices.contiguous();
}

/// Into how many parts the sums over a long k are split, so that a small result keeps many threads
/// busy. By the sizes alone: it changes the order of the sums.
int64_t parts_of_sums(int64_t m, int64_t k, int64_t n) {
  const int64_t tiles = ratio_up(m, kLeastRows) * ratio_up(n, kLeastColumns);
  return std::clamp(std::min(kTasks / tiles, k / kLeastSum), int64_t{1}, kTasks);
}

/// Multiplies as `multiply` does, with sums over `parts` parts of k beside each other, in FP32.
void multiply_deep(Multiply* multiply, const at::Tensor& out, const at::Tensor& addend,
                   const at::Tensor& a, const at::Tensor& b, const Scales& scales, int64_t parts) {
  const int64_t k = a.size(1), depth = k / parts / kernels::kChain * kernels::kChain,
                whole = parts * depth;
  const bool has_rest = whole < k;
  const at::Tensor sums =
      at::empty({parts + has_rest, out.size(0), out.size(1)}, out.options().dtype(at::kFloat));
  multiply(sums.narrow(0, 0, parts), {},
           a.narrow(1, 0, whole).unflatten(1, {parts, depth}).movedim(1, 0),
           b.narrow(0, 0, whole).unflatten(0, {parts, depth}), {1, 1});
  if (has_rest)
    multiply(sums[parts], {}, a.narrow(1, whole, k - whole), b.narrow(0, whole, k - whole), {1, 1});
  at::Tensor sum = sums[0];
  for (int64_t part = 1; part < sums.size(0); ++part) sum.add_(sums[part]);
  if (scales.alpha != 1) sum.mul_(scales.alpha);
  if (addend.defined()) sum.add_(addend, scales.beta);
  convert(out, sum);
}

at::Tensor computed(const at::Tensor& addend, const at::Tensor& a, const at::Tensor& b,
                    const Scales& scales, Multiply* multiply) {
  const NoAutocast no_autocast;
  const at::AutoDispatchBelowADInplaceOrView below;
  RECORD_FUNCTION_WITH_SCOPE(at::RecordScope::USER_SCOPE, "demi.product",
                             std::vector<c10::IValue>({a, b}));
  auto sizes = a.sizes().vec();
  sizes.back() = b.size(-1);
  const at::Tensor out = at::empty(sizes, a.options());
  // With beta 0, as in LibTorch, nothing of the addend counts, NaN neither.
  const bool adds = addend.defined() && scales.beta != 0;
  // Converted before it is spread over the rows.
  const at::Tensor expanded = adds ? addend.to(at::kFloat).expand(sizes) : at::Tensor();
  const at::Tensor left = dense_one_way(a), right = dense_one_way(b);
  const int64_t parts = out.dim() == 2 ? parts_of_sums(out.size(0), left.size(1), out.size(1)) : 1;
  if (parts > 1)
    multiply_deep(multiply, out, expanded, left, right, scales, parts);
  else
    multiply(out, expanded, left, right, scales);
  return out;
}

/// Keeps the product of two matrices (tensor::kept). Products of a batch are often attention's,
/// which are not kept.
at::Tensor multiplied(const at::Tensor& addend, const at::Tensor& a, const at::Tensor& b,
                      const Scales& scales) {
  const auto compute = [&] { return computed(addend, a, b, scales, &multiply); };
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

/// Whether the kernels multiply these tensors: of 16 bits if that is faster than LibTorch.
bool is_own(const at::Tensor& addend, const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != at::kFloat) return takes({&addend, &a, &b});
  return kernels::cpu_kernels() && is_ordinary({&addend, &a, &b});
}

bool differentiates(const at::Tensor& addend, const at::Tensor& a, const at::Tensor& b) {
  return at::GradMode::is_enabled() &&
         (a.requires_grad() || b.requires_grad() || (addend.defined() && addend.requires_grad()));
}

/// LibTorch's product, for example in backward with a batch of gradients (vmap).
at::Tensor libtorchs(const at::Tensor& addend, const at::Tensor& a, const at::Tensor& b,
                     double beta, double alpha) {
  const NoAutocast no_autocast;
  const bool is_batch = a.dim() == 3;
  if (addend.defined())
    return is_batch ? at::baddbmm(addend, a, b, beta, alpha) : at::addmm(addend, a, b, beta, alpha);
  const at::Tensor product = is_batch ? at::bmm(a, b) : at::mm(a, b);
  return alpha == 1 ? product : product * alpha;
}

}  // namespace

at::Tensor matrix_product(const at::Tensor& addend, const at::Tensor& a, const at::Tensor& b,
                          double beta, double alpha) {
  if (!is_own(addend, a, b)) return libtorchs(addend, a, b, beta, alpha);
  if (!differentiates(addend, a, b)) return multiplied(addend, a, b, {beta, alpha});
  return ProductFunction::apply(a, b, addend.defined() ? std::optional(addend) : std::nullopt, beta,
                                alpha);
}

at::Tensor symmetric_product(const at::Tensor& addend, const at::Tensor& a, const at::Tensor& b,
                             double beta, double alpha) {
  if (a.scalar_type() != at::kFloat || !is_own(addend, a, b) || differentiates(addend, a, b))
    return matrix_product(addend, a, b, beta, alpha);
  return computed(addend, a, b, {beta, alpha}, &multiply_symmetric);
}

}  // namespace demi::products
