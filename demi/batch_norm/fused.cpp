#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "demi/batch_norm/call.h"
#include "demi/batch_norm/channels.h"
#include "demi/batch_norm/gradients.h"
#include "demi/batch_norm/statistics.h"
#include "demi/kernels/cpu_kernels.h"
#include "demi/products/no_autocast.h"
#include "demi/products/through_fp32.h"

namespace demi::batch_norm {
namespace {

using kernels::BatchNormPass;
using Optional = std::optional<at::Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Mean and 1 / deviation of each channel, (2, C), from the batch, whose share the running
/// statistics take.
at::Tensor batch_statistics(const Call& call, const kernels::BatchNorm& norm) {
  const Moments moments = moments_of(norm);
  const auto channels = static_cast<std::size_t>(norm.channels);
  const at::Tensor statistics = floats({2, norm.channels});
  auto* const mean = statistics.mutable_data_ptr<float>();
  for (std::size_t c = 0; c < channels; ++c) {
    mean[c] = static_cast<float>(moments.mean[c]);
    mean[channels + c] =
        static_cast<float>(1 / std::sqrt(moments.squares[c] / moments.count + call.options.eps));
  }
  const auto move = [&](const at::Tensor& running, auto now) {
    if (!running.defined()) return;
    auto* const of = running.mutable_data_ptr<float>();
    for (std::size_t c = 0; c < channels; ++c)
      of[c] =
          static_cast<float>((1 - call.options.momentum) * of[c] + call.options.momentum * now(c));
    if (!running.is_inference()) running.unsafeGetTensorImpl()->bump_version();
  };
  move(call.running_mean, [&](std::size_t c) { return moments.mean[c]; });
  move(call.running_var, [&](std::size_t c) { return moments.squares[c] / (moments.count - 1); });
  return statistics;
}

/// The same of the running statistics.
at::Tensor given_statistics(const Call& call) {
  const std::int64_t channels = call.input.size(1);
  const at::Tensor statistics = floats({2, channels});
  auto* const mean = statistics.mutable_data_ptr<float>();
  const auto* const of = call.running_mean.const_data_ptr<float>();
  const auto* const variance = call.running_var.const_data_ptr<float>();
  for (std::int64_t c = 0; c < channels; ++c) {
    mean[c] = of[c];
    mean[channels + c] = static_cast<float>(1 / std::sqrt(variance[c] + call.options.eps));
  }
  return statistics;
}

struct Forward {
  at::Tensor output, statistics, chosen;
};

/// `chosen` is made where backward may want it.
Forward forward_of(const Call& call, bool is_differentiated) {
  const BatchNormRelu& o = call.options;
  const at::Tensor& x = call.input;
  kernels::BatchNorm norm = described(x, o.relu, o.pool);
  Forward result;
  result.statistics = o.training ? batch_statistics(call, norm) : given_statistics(call);
  const at::Tensor channels = channels_of(result.statistics, call.weight, call.bias);
  const auto format = format_of(x);
  result.output = at::empty({norm.images, norm.channels, norm.pool.height, norm.pool.width},
                            x.options(), format);
  if (norm.pool.any() && is_differentiated)
    result.chosen = at::empty_like(result.output, at::kByte);
  point_to(norm, channels);
  const at::Tensor add =
      o.add.defined() ? o.add.contiguous(format) : at::Tensor();  // held until the pass is over
  norm.add = add.defined() ? add.const_data_ptr() : nullptr;
  norm.output = result.output.mutable_data_ptr();
  norm.chosen = result.chosen.defined() ? result.chosen.mutable_data_ptr<std::uint8_t>() : nullptr;
  run(norm, BatchNormPass::forward);
  return result;
}

}  // namespace

/// Autograd's node. Its name is what graphs and messages show.
struct BatchNormReluBackward : torch::autograd::Function<BatchNormReluBackward> {
  /// The tensors are those of the call, and given for autograd to find.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const Optional&,
                            const Optional&, const Optional&, const Call* call) {
    const BatchNormRelu& o = call->options;
    const Forward result = forward_of(*call, /*is_differentiated=*/true);
    const bool adds = o.add.defined();
    const bool masks = adds && o.relu && !call->pools();
    context->save_for_backward({input, call->weight, call->bias, result.statistics,
                                masks ? result.output : at::Tensor(), result.chosen});
    auto& data = context->saved_data;
    data["training"] = o.training;
    data["relu"] = o.relu;
    data["add"] = adds;
    data["eps"] = o.eps;
    const auto& pool = o.pool;
    data["pool"] = std::vector<std::int64_t>{pool.size[0],   pool.size[1],    pool.stride[0],
                                             pool.stride[1], pool.padding[0], pool.padding[1]};
    return result.output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const products::NoAutocast none;
    const auto tensors = context->get_saved_variables();
    auto& data = context->saved_data;
    const auto pool = data["pool"].toIntVector();
    const Saved saved{.input = tensors[0],
                      .weight = tensors[1],
                      .bias = tensors[2],
                      .statistics = tensors[3],
                      .output = tensors[4],
                      .chosen = tensors[5],
                      .training = data["training"].toBool(),
                      .relu = data["relu"].toBool(),
                      .has_add = data["add"].toBool(),
                      .eps = data["eps"].toDouble(),
                      .pool = {{pool[0], pool[1]}, {pool[2], pool[3]}, {pool[4], pool[5]}}};
    const at::Tensor& gradient = gradients[0];
    const bool by_kernels = !at::GradMode::is_enabled() &&
                            products::is_ordinary({&saved.input, &gradient}) &&
                            kernels::cpu_kernels();
    const Gradients result = by_kernels ? gradients_by_kernels(saved, gradient)
                                        : gradients_by_operators(saved, gradient);
    return {result.input, saved.weight.defined() ? result.weight : at::Tensor(),
            saved.bias.defined() ? result.bias : at::Tensor(), result.add, at::Tensor()};
  }
};

at::Tensor fused(const Call& call) {
  const auto wants = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.requires_grad();
  };
  const bool is_differentiated =
      at::GradMode::is_enabled() &&
      (wants(call.input) || wants(call.weight) || wants(call.bias) || wants(call.options.add));
  if (!is_differentiated) return forward_of(call, false).output;
  const auto given = [](const at::Tensor& tensor) {
    return tensor.defined() ? Optional(tensor) : Optional();
  };
  return BatchNormReluBackward::apply(call.input, given(call.weight), given(call.bias),
                                      given(call.options.add), &call);
}

}  // namespace demi::batch_norm
