#include "demi/products/ops.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>

#include <algorithm>

#include "demi/products/convolution.h"
#include "demi/products/matrix_product.h"
#include "demi/products/through_fp32.h"

namespace demi::products {
namespace {

std::vector<int64_t> with_last(at::IntArrayRef sizes, int64_t last) {
  auto result = sizes.vec();
  result.back() = last;
  return result;
}

// Below these, the host's work and the conversions cost what the product saves (measured with
// AVX-512: with bf16 they pay from 8 x 32 x 32 on, and a side of 4 beside 1024 x 1024).
constexpr int64_t kLeastProduct = 1 << 13, kLeastSide = 4, kLeastConvolution = 1 << 18;

bool pays(int64_t m, int64_t k, int64_t n, int64_t batch = 1) {
  return std::min({m, k, n}) >= kLeastSide && batch * m * k * n >= kLeastProduct;
}

bool fit(const at::Tensor& a, const at::Tensor& b, int64_t dims) {
  return a.dim() == dims && b.dim() == dims && a.size(-1) == b.size(-2) &&
         (dims == 2 || a.size(0) == b.size(0)) &&
         pays(a.size(-2), a.size(-1), b.size(-1), dims == 2 ? 1 : a.size(0));
}

/// Whether beta addend + alpha a b runs here.
bool takes_product(const at::Tensor& addend, const at::Tensor& a, const at::Tensor& b,
                   int64_t dims) {
  if (!fit(a, b, dims) || !takes({&addend, &a, &b})) return false;
  return !addend.defined() ||
         at::is_expandable_to(addend.sizes(), with_last(a.sizes(), b.size(-1)));
}

OptionalTensor product(const at::Tensor& a, const at::Tensor& b, int64_t dims) {
  if (!takes_product({}, a, b, dims)) return std::nullopt;
  return matrix_product({}, a, b);
}

OptionalTensor product(const at::Tensor& addend, const at::Tensor& a, const at::Tensor& b,
                       const at::Scalar& beta, const at::Scalar& alpha, int64_t dims) {
  if (beta.isComplex() || alpha.isComplex() || !takes_product(addend, a, b, dims))
    return std::nullopt;
  return matrix_product(addend, a, b, beta.toDouble(), alpha.toDouble());
}

/// A number for each spatial dimension; nullopt if LibTorch would refuse the list.
std::optional<std::vector<int64_t>> spread(at::IntArrayRef list, int64_t spatial) {
  if (list.size() == 1) return std::vector<int64_t>(static_cast<std::size_t>(spatial), list[0]);
  if (static_cast<int64_t>(list.size()) != spatial) return std::nullopt;
  return list.vec();
}

std::optional<ConvolutionOptions> options_for(int64_t spatial, const at::Tensor& weight,
                                              c10::SymIntArrayRef stride, at::IntArrayRef padding,
                                              c10::SymIntArrayRef dilation,
                                              const c10::SymInt& groups) {
  if (weight.dim() != spatial + 2) return std::nullopt;
  auto strides = spread(C10_AS_INTARRAYREF_SLOW(stride), spatial),
       paddings = spread(padding, spatial),
       dilations = spread(C10_AS_INTARRAYREF_SLOW(dilation), spatial);
  if (!strides || !paddings || !dilations) return std::nullopt;
  return ConvolutionOptions{.stride = std::move(*strides),
                            .padding = std::move(*paddings),
                            .dilation = std::move(*dilations),
                            .output_padding = std::vector<int64_t>(size_t(spatial), 0),
                            .groups = groups.guard_int(__FILE__, __LINE__)};
}

/// Whether each place of the output is made of one place of the input alone.
bool is_pointwise(const at::Tensor& weight, const ConvolutionOptions& o) {
  const auto all = [](at::IntArrayRef list, int64_t value) {
    return std::ranges::all_of(list, [value](int64_t n) { return n == value; });
  };
  const bool dilates_in_range = std::ranges::all_of(o.dilation, [](int64_t n) { return n > 0; });
  return all(weight.sizes().slice(2), 1) && all(o.stride, 1) && all(o.padding, 0) &&
         dilates_in_range && !o.transposed;
}

/// A pointwise convolution of (batch, ..., channels) as the matrix product that it is, whose
/// operands need no pass of conversion.
at::Tensor of_places(const at::Tensor& places, const at::Tensor& weight, const at::Tensor& bias) {
  return matrix_product(bias, places.reshape({-1, weight.size(1)}), weight.flatten(1).t())
      .reshape(with_last(places.sizes(), weight.size(0)))
      .movedim(-1, 1);
}

/// Adds a batch of one if the input has none, as LibTorch's ops do.
OptionalTensor convolve(const at::Tensor& input, const at::Tensor& weight,
                        const OptionalTensor& bias, const ConvolutionOptions& options) {
  const bool batched = input.dim() == weight.dim();
  if (!batched && input.dim() != weight.dim() - 1) return std::nullopt;
  const at::Tensor given_bias = bias.value_or(at::Tensor());
  const int64_t channels = input.size(batched ? 1 : 0);
  if (channels == 0) return std::nullopt;
  // Counts products as without stride, where each place of the input meets the whole weight.
  if (input.numel() / channels * weight.numel() < kLeastConvolution ||
      !takes({&input, &weight, &given_bias}))
    return std::nullopt;
  // True without groups, unless LibTorch would refuse the arguments.
  const bool plain = options.groups == 1 && channels == weight.size(1) &&
                     (!bias || !bias->defined() || bias->sizes() == weight.sizes().slice(0, 1));
  if (batched && plain && is_pointwise(weight, options)) {
    const at::Tensor places = input.movedim(1, -1);
    if (places.is_contiguous()) return of_places(places, weight, given_bias);
  }
  if (batched) return convolution(input, weight, given_bias, options);
  return convolution(input.unsqueeze(0), weight, given_bias, options).squeeze(0);
}

}  // namespace

OptionalTensor linear(const at::Tensor& input, const at::Tensor& weight,
                      const OptionalTensor& bias) {
  const at::Tensor addend = bias.value_or(at::Tensor());
  if (input.dim() < 1 || weight.dim() != 2 || input.size(-1) != weight.size(1) ||
      (addend.defined() && (addend.dim() != 1 || addend.size(0) != weight.size(0))) ||
      weight.numel() == 0 ||
      !pays(input.numel() / weight.size(1), weight.size(1), weight.size(0)) ||
      !takes({&input, &weight, &addend}))
    return std::nullopt;
  if (input.dim() == 2) return matrix_product(addend, input, weight.t());
  return matrix_product(addend, input.reshape({-1, input.size(-1)}), weight.t())
      .reshape(with_last(input.sizes(), weight.size(0)));
}

OptionalTensor mm(const at::Tensor& a, const at::Tensor& b) { return product(a, b, 2); }
OptionalTensor bmm(const at::Tensor& a, const at::Tensor& b) { return product(a, b, 3); }
OptionalTensor addmm(const at::Tensor& addend, const at::Tensor& a, const at::Tensor& b,
                     const at::Scalar& beta, const at::Scalar& alpha) {
  return product(addend, a, b, beta, alpha, 2);
}
OptionalTensor baddbmm(const at::Tensor& addend, const at::Tensor& a, const at::Tensor& b,
                       const at::Scalar& beta, const at::Scalar& alpha) {
  return product(addend, a, b, beta, alpha, 3);
}

// Products with a vector read each number once: nothing to win.
OptionalTensor matmul(const at::Tensor& a, const at::Tensor& b) {
  if (a.dim() < 2 || b.dim() < 2 || a.size(-1) != b.size(-2)) return std::nullopt;
  if (b.dim() == 2) {
    if (a.dim() == 2) return product(a, b, 2);
    if (b.numel() == 0 || !pays(a.numel() / b.size(0), b.size(0), b.size(1)) || !takes({&a, &b}))
      return std::nullopt;
    return matrix_product({}, a.reshape({-1, a.size(-1)}), b)
        .reshape(with_last(a.sizes(), b.size(1)));
  }
  const at::IntArrayRef batch_a = a.sizes().slice(0, static_cast<size_t>(a.dim() - 2)),
                        batch_b = b.sizes().slice(0, static_cast<size_t>(b.dim() - 2));
  if (!at::is_expandable_to(batch_a, batch_b) && !at::is_expandable_to(batch_b, batch_a))
    return std::nullopt;  // rare: both sides have dimensions of 1
  const std::vector<int64_t> batch = at::infer_size(batch_a, batch_b);
  int64_t matrices = 1;
  for (const int64_t n : batch) matrices *= n;
  if (!pays(a.size(-2), a.size(-1), b.size(-1), matrices) || !takes({&a, &b})) return std::nullopt;
  const auto flat = [&](const at::Tensor& t) {
    auto sizes = batch;
    sizes.insert(sizes.end(), {t.size(-2), t.size(-1)});
    return t.expand(sizes).reshape({matrices, t.size(-2), t.size(-1)});
  };
  auto sizes = batch;
  sizes.insert(sizes.end(), {a.size(-2), b.size(-1)});
  return matrix_product({}, flat(a), flat(b)).reshape(sizes);
}

OptionalTensor conv(int64_t spatial, const at::Tensor& input, const at::Tensor& weight,
                    const OptionalTensor& bias, c10::SymIntArrayRef stride,
                    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                    const c10::SymInt& groups) {
  if (!slow_in(input.scalar_type())) return std::nullopt;
  const auto options =
      options_for(spatial, weight, stride, C10_AS_INTARRAYREF_SLOW(padding), dilation, groups);
  return options ? convolve(input, weight, bias, *options) : std::nullopt;
}

OptionalTensor conv_padded(int64_t spatial, const at::Tensor& input, const at::Tensor& weight,
                           const OptionalTensor& bias, c10::SymIntArrayRef stride,
                           std::string_view padding, c10::SymIntArrayRef dilation,
                           const c10::SymInt& groups) {
  if (!slow_in(input.scalar_type())) return std::nullopt;
  auto options = options_for(spatial, weight, stride, {0}, dilation, groups);
  if (!options) return std::nullopt;
  if (padding == "same") {
    for (std::size_t i = 0; i < options->padding.size(); ++i) {
      const int64_t kernel = weight.size(static_cast<int64_t>(i) + 2),
                    total = options->dilation[i] * (kernel - 1);
      // LibTorch pads the input first where the two sides differ; it refuses a stride.
      if (total % 2 != 0 || options->stride[i] != 1) return std::nullopt;
      options->padding[i] = total / 2;
    }
  } else if (padding != "valid") {
    return std::nullopt;
  }
  return convolve(input, weight, bias, *options);
}

OptionalTensor conv_transpose(int64_t spatial, const at::Tensor& input, const at::Tensor& weight,
                              const OptionalTensor& bias, c10::SymIntArrayRef stride,
                              c10::SymIntArrayRef padding, c10::SymIntArrayRef output_padding,
                              const c10::SymInt& groups, c10::SymIntArrayRef dilation) {
  if (!slow_in(input.scalar_type())) return std::nullopt;
  auto options =
      options_for(spatial, weight, stride, C10_AS_INTARRAYREF_SLOW(padding), dilation, groups);
  if (!options) return std::nullopt;
  auto outer = spread(C10_AS_INTARRAYREF_SLOW(output_padding), spatial);
  if (!outer) return std::nullopt;
  options->transposed = true;
  options->output_padding = std::move(*outer);
  return convolve(input, weight, bias, *options);
}

}  // namespace demi::products
