#include "demi/autocast/by_recipe.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "demi/autocast/parts.h"
#include "demi/core/error.h"
#include "demi/quantization/layers.h"

namespace demi {
namespace {

using quantization::ConvolutionShape;

// A transform would see the function of a recipe as a product without a rule of its own.
void require_plain(const Call& call) {
  require(call.plain, {.where = "autocast." + op_name(call.number).substr(6),
                       .what = "a layer with a recipe runs inside a transform or a trace",
                       .seen = "vmap, a functorch gradient, jit.trace or functionalization",
                       .accepted = "an ordinary call",
                       .advice = "demi::unapply(module) first"});
}

bool has_recipe(const at::Tensor& tensor) {
  const auto mark = mark_of_part(tensor);
  return mark && mark->quantized;
}

/// The matrix whose transposed view this is: the parameter itself, where the view is one of it.
at::Tensor transposed(const at::Tensor& view) {
  if (view.is_view() && view._base().dim() == 2) {
    const at::Tensor base(view._base());
    const at::NoGradGuard no_grad;
    if (base.t().is_set_to(view)) return base;
  }
  return view.t();
}

at::Tensor linear_now(const Call& call, const at::Tensor& x, const at::Tensor& weight,
                      const OptionalTensor& bias) {
  require_plain(call);
  return quantization::linear(x, weight, bias, call.recipe(), call.dtype);
}

bool is_bias_of(const at::Tensor& addend, const at::Tensor& b) {
  return addend.dim() == 1 && addend.size(0) == b.size(1);
}

std::vector<std::int64_t> numbers(c10::SymIntArrayRef of, int64_t spatial) {
  std::vector<std::int64_t> all;
  for (const c10::SymInt& one : of) all.push_back(one.guard_int(__FILE__, __LINE__));
  if (all.size() == 1) all.resize(static_cast<std::size_t>(spatial), all.front());
  return all;
}

// Convolutions take an input without a batch, too.
OptionalTensor conv_now(const Call& call, int64_t spatial, const at::Tensor& x,
                        const at::Tensor& weight, const OptionalTensor& bias,
                        const ConvolutionShape& shape) {
  if (!has_recipe(weight) || !call.recipe()->recipe->takes_convolutions ||
      weight.dim() != spatial + 2 || (x.dim() != spatial + 1 && x.dim() != spatial + 2))
    return std::nullopt;
  require_plain(call);
  const bool is_batch = x.dim() == spatial + 2;
  const at::Tensor y = quantization::convolution(is_batch ? x : x.unsqueeze(0), weight, bias, shape,
                                                 call.recipe(), call.dtype);
  return is_batch ? y : y.squeeze(0);
}

}  // namespace

OptionalTensor linear_by_recipe(const Call& call, const at::Tensor& x, const at::Tensor& weight,
                                const OptionalTensor& bias) {
  if (!has_recipe(weight) || weight.dim() != 2 || x.dim() == 0) return std::nullopt;
  return linear_now(call, x, weight, bias);
}

OptionalTensor mm_by_recipe(const Call& call, const at::Tensor& a, const at::Tensor& b) {
  return matmul_by_recipe(call, a, b);
}

OptionalTensor addmm_by_recipe(const Call& call, const at::Tensor& addend, const at::Tensor& a,
                               const at::Tensor& b, const at::Scalar& beta,
                               const at::Scalar& alpha) {
  if (!has_recipe(b) || b.dim() != 2 || a.dim() != 2) return std::nullopt;
  const bool is_plain_sum = beta.toDouble() == 1 && alpha.toDouble() == 1;
  if (is_plain_sum && is_bias_of(addend, b)) return linear_now(call, a, transposed(b), addend);
  const at::Tensor product = linear_now(call, a, transposed(b), std::nullopt);
  const at::Tensor scaled = at::mul(product, alpha);
  // With beta 0 nothing of the addend counts, NaN neither, as in LibTorch.
  if (beta.toDouble() == 0) return scaled.to(call.dtype);
  return at::add(scaled, at::mul(addend, beta)).to(call.dtype);
}

OptionalTensor matmul_by_recipe(const Call& call, const at::Tensor& a, const at::Tensor& b) {
  if (!has_recipe(b) || b.dim() != 2 || a.dim() == 0) return std::nullopt;
  return linear_now(call, a, transposed(b), std::nullopt);
}

OptionalTensor conv_by_recipe(const Call& call, int64_t spatial, const at::Tensor& x,
                              const at::Tensor& weight, const OptionalTensor& bias,
                              c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
                              c10::SymIntArrayRef dilation, const c10::SymInt& groups) {
  return conv_now(call, spatial, x, weight, bias,
                  {.stride = numbers(stride, spatial),
                   .padding = numbers(padding, spatial),
                   .dilation = numbers(dilation, spatial),
                   .output_padding = std::vector<std::int64_t>(static_cast<std::size_t>(spatial)),
                   .groups = groups.guard_int(__FILE__, __LINE__)});
}

OptionalTensor conv_padded_by_recipe(const Call& call, int64_t spatial, const at::Tensor& x,
                                     const at::Tensor& weight, const OptionalTensor& bias,
                                     c10::SymIntArrayRef stride, std::string_view padding,
                                     c10::SymIntArrayRef dilation, const c10::SymInt& groups) {
  if (!has_recipe(weight) || weight.dim() != spatial + 2) return std::nullopt;
  ConvolutionShape shape{
      .stride = numbers(stride, spatial),
      .padding = std::vector<std::int64_t>(static_cast<std::size_t>(spatial)),
      .dilation = numbers(dilation, spatial),
      .output_padding = std::vector<std::int64_t>(static_cast<std::size_t>(spatial)),
      .groups = groups.guard_int(__FILE__, __LINE__)};
  at::Tensor padded = x;
  const auto is_one = [](std::int64_t step) { return step == 1; };
  // LibTorch says what is wrong.
  if (padding != "valid" && (padding != "same" || !std::ranges::all_of(shape.stride, is_one)))
    return std::nullopt;
  if (padding == "same") {
    std::vector<std::int64_t> more;  // from the last dimension on; an odd place goes behind
    for (int64_t d = spatial - 1; d >= 0; --d) {
      const auto i = static_cast<std::size_t>(d);
      const std::int64_t total = shape.dilation[i] * (weight.size(d + 2) - 1);
      more.push_back(total / 2);
      more.push_back(total - total / 2);
    }
    padded = at::constant_pad_nd(x, more);
  }
  return conv_now(call, spatial, padded, weight, bias, shape);
}

OptionalTensor conv_transpose_by_recipe(const Call& call, int64_t spatial, const at::Tensor& x,
                                        const at::Tensor& weight, const OptionalTensor& bias,
                                        c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
                                        c10::SymIntArrayRef output_padding,
                                        const c10::SymInt& groups, c10::SymIntArrayRef dilation) {
  return conv_now(call, spatial, x, weight, bias,
                  {.stride = numbers(stride, spatial),
                   .padding = numbers(padding, spatial),
                   .dilation = numbers(dilation, spatial),
                   .transposed = true,
                   .output_padding = numbers(output_padding, spatial),
                   .groups = groups.guard_int(__FILE__, __LINE__)});
}

}  // namespace demi
