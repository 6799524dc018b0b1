#include "demi/products/convolution.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>

#include "demi/products/convert.h"
#include "demi/products/no_autocast.h"
#include "demi/products/through_fp32.h"
#include "demi/tensor/kept_results.h"

namespace demi::products {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Elements of a piece of the batch in FP32, a thread: 1 MiB, so that the pieces stay in the cache
// and add little to the peak of memory.
constexpr int64_t kPiecePerThread = 1 << 18;

// The least examples of a piece, if so many have at most kMostElements elements (16 MiB): with one
// thread LibTorch uses its own convolutions for smaller batches, which take up to twice oneDNN's
// time; and each call costs.
constexpr int64_t kLeastExamples = 16, kMostElements = 1 << 22;

at::Tensor fp32(const at::Tensor& tensor) { return tensor.to(at::kFloat); }

std::optional<at::Tensor> fp32_or_none(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(fp32(tensor)) : std::nullopt;
}

/// Calls work(first, n) for pieces of a batch of examples with that many elements, none of which is
/// much smaller than the others. If a gradient of `weights` elements is summed over the pieces,
/// each has at least as many.
template <class Work>
void for_pieces(int64_t batch, int64_t elements, int64_t weights, const Work& work) {
  elements = std::max<int64_t>(1, elements);
  const int64_t at_once = std::max(kPiecePerThread * at::get_num_threads(), weights),
                least = elements * kLeastExamples <= kMostElements ? kLeastExamples : 1,
                piece = std::clamp(at_once / elements, std::min(least, batch), batch),
                pieces = batch / piece;
  for (int64_t i = 0; i < pieces; ++i) {
    const int64_t first = batch * i / pieces, end = batch * (i + 1) / pieces;
    work(first, end - first);
  }
}

int64_t elements_of_one(const at::Tensor& batch) { return batch.numel() / batch.size(0); }

/// Room for the results of a whole batch, laid out like those of a piece.
at::Tensor low_like(const at::Tensor& piece, int64_t batch, at::ScalarType dtype) {
  auto sizes = piece.sizes().vec();
  sizes[0] = batch;
  return at::empty(sizes, piece.options().dtype(dtype), piece.suggest_memory_format());
}

// An output has about as many elements as an input with the weight's channels.
int64_t elements_of_larger(const at::Tensor& input, int64_t channels) {
  const int64_t elements = elements_of_one(input);
  return std::max(elements, elements / input.size(1) * channels);
}

at::Tensor computed_convolution(const at::Tensor& input, const at::Tensor& weight,
                                const at::Tensor& bias, const ConvolutionOptions& o) {
  const NoAutocast no_autocast;
  const at::AutoDispatchBelowADInplaceOrView below;
  const at::Tensor wide_weight = fp32(weight);
  const auto wide_bias = fp32_or_none(bias);
  const int64_t batch = input.size(0);
  const at::ScalarType dtype = input.scalar_type();
  Widened widened;
  at::Tensor output;
  const int64_t channels = o.transposed ? weight.size(1) * o.groups : weight.size(0);
  for_pieces(
      batch, elements_of_larger(input, channels), weight.numel(), [&](int64_t first, int64_t n) {
        const at::Tensor piece =
            at::convolution(widened(input.narrow(0, first, n)), wide_weight, wide_bias, o.stride,
                            o.padding, o.dilation, o.transposed, o.output_padding, o.groups);
        if (!output.defined()) output = low_like(piece, batch, dtype);
        convert(output.narrow(0, first, n), piece);
      });
  return output;
}

at::Tensor convolved(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                     const ConvolutionOptions& o) {
  return tensor::kept("demi::products::convolution",
                      [&] { return computed_convolution(input, weight, bias, o); });
}

struct Gradients {
  at::Tensor input, weight, bias;
};

/// A piece of the batch at a time; by operations that can be differentiated again where a graph of
/// them is wanted.
Gradients convolution_gradients(const at::Tensor& gradient, const at::Tensor& input,
                                const at::Tensor& weight, const ConvolutionOptions& o,
                                const std::array<bool, 3>& wanted) {
  const int64_t batch = input.size(0), channels = gradient.size(1);
  const at::IntArrayRef bias_sizes(channels);
  if (!takes({&gradient, &input, &weight})) {  // a batch of gradients (vmap), say
    auto [of_input, of_weight, of_bias] =
        at::convolution_backward(gradient, input, weight, bias_sizes, o.stride, o.padding,
                                 o.dilation, o.transposed, o.output_padding, o.groups, wanted);
    return {std::move(of_input), std::move(of_weight), std::move(of_bias)};
  }
  const at::Tensor wide_weight = fp32(weight);
  Gradients sum;
  Widened wide_gradient, wide_input;
  const bool records = at::GradMode::is_enabled();
  const auto widen = [&](Widened& into, const at::Tensor& piece) {
    return records ? fp32(piece) : into(piece);
  };
  const auto add = [](at::Tensor& to, const at::Tensor& piece) {
    if (!piece.defined()) return;
    if (to.defined())
      to.add_(piece);
    else
      to = piece;
  };
  for_pieces(batch, std::max(elements_of_one(input), elements_of_one(gradient)), weight.numel(),
             [&](int64_t first, int64_t n) {
               const auto [of_input, of_weight, of_bias] = at::convolution_backward(
                   widen(wide_gradient, gradient.narrow(0, first, n)),
                   widen(wide_input, input.narrow(0, first, n)), wide_weight, bias_sizes, o.stride,
                   o.padding, o.dilation, o.transposed, o.output_padding, o.groups, wanted);
               add(sum.weight, of_weight);
               add(sum.bias, of_bias);
               if (!of_input.defined()) return;
               if (!sum.input.defined()) sum.input = low_like(of_input, batch, input.scalar_type());
               if (records)
                 sum.input.narrow(0, first, n).copy_(of_input);
               else
                 convert(sum.input.narrow(0, first, n), of_input);
             });
  return sum;
}

struct ConvolutionFunction : torch::autograd::Function<ConvolutionFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                            const std::shared_ptr<const ConvolutionOptions>& options) {
    context->save_for_backward({input, weight});
    context->saved_data["bias"] = bias.has_value();
    context->saved_data["stride"] = options->stride;
    context->saved_data["padding"] = options->padding;
    context->saved_data["dilation"] = options->dilation;
    context->saved_data["transposed"] = options->transposed;
    context->saved_data["output_padding"] = options->output_padding;
    context->saved_data["groups"] = options->groups;
    return convolved(input, weight, bias.value_or(at::Tensor()), *options);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const NoAutocast no_autocast;
    const auto saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1], &gradient = gradients[0];
    variable_list result(4);
    if (!gradient.defined()) return result;
    auto& data = context->saved_data;
    const auto list = [&](const char* name) { return data[name].toIntVector(); };
    const ConvolutionOptions options{.stride = list("stride"),
                                     .padding = list("padding"),
                                     .dilation = list("dilation"),
                                     .transposed = data["transposed"].toBool(),
                                     .output_padding = list("output_padding"),
                                     .groups = data["groups"].toInt()};
    const std::array<bool, 3> wanted{context->needs_input_grad(0), context->needs_input_grad(1),
                                     data["bias"].toBool() && context->needs_input_grad(2)};
    const Gradients of = convolution_gradients(gradient, input, weight, options, wanted);
    const auto rounded = [&](const at::Tensor& t) {
      return t.defined() ? t.to(input.scalar_type()) : t;
    };
    result[0] = of.input;
    result[1] = rounded(of.weight);
    result[2] = rounded(of.bias);
    return result;
  }
};

}  // namespace

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                       const ConvolutionOptions& options) {
  const bool differentiates =
      at::GradMode::is_enabled() &&
      (input.requires_grad() || weight.requires_grad() || (bias.defined() && bias.requires_grad()));
  if (!differentiates) return convolved(input, weight, bias, options);
  return ConvolutionFunction::apply(input, weight,
                                    bias.defined() ? std::optional(bias) : std::nullopt,
                                    std::make_shared<const ConvolutionOptions>(options));
}

}  // namespace demi::products
