#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "demi/batch_norm/call.h"
#include "demi/batch_norm/channels.h"
#include "demi/batch_norm/engine.h"
#include "demi/batch_norm/gradients.h"
#include "demi/kernels/cpu_kernels.h"
#include "demi/products/no_autocast.h"
#include "demi/products/through_fp32.h"

namespace demi::batch_norm {
namespace {

using kernels::BatchNormPass;
using Optional = std::optional<at::Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Forward {
  at::Tensor output, channels, chosen;
};

/// Mean, 1 / deviation, scale and shift, (4, C). In training the running statistics move.
at::Tensor channels_of(const Call& call, const kernels::BatchNorm& norm, const Passes& passes) {
  const BatchNormRelu& o = call.options;
  at::Tensor channels = passes.floats({4, norm.channels});
  const auto numbers = [](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
  };
  // They are only read if they do not move.
  const auto running = [&](const at::Tensor& tensor) {
    return o.training && tensor.defined() ? tensor.mutable_data_ptr<float>()
                                          : const_cast<float*>(numbers(tensor));
  };
  passes.statistics(norm,
                    {.eps = o.eps,
                     .momentum = o.momentum,
                     .weight = numbers(call.weight),
                     .bias = numbers(call.bias),
                     .running_mean = running(call.running_mean),
                     .running_var = running(call.running_var),
                     .channels = channels.mutable_data_ptr<float>()},
                    o.training);
  for (const at::Tensor* moved : {&call.running_mean, &call.running_var})
    if (o.training && moved->defined() && !moved->is_inference())
      moved->unsafeGetTensorImpl()->bump_version();
  return channels;
}

/// `chosen` is made where backward may want it.
Forward forward_of(const Call& call, const Engine& engine, bool is_differentiated) {
  const BatchNormRelu& o = call.options;
  const at::Tensor& x = call.input;
  kernels::BatchNorm norm = described(x, o.relu, o.pool);
  const Passes passes(engine, x);
  Forward result;
  result.channels = channels_of(call, norm, passes);
  const auto format = format_of(x);
  result.output = at::empty({norm.images, norm.channels, norm.pool.height, norm.pool.width},
                            x.options(), format);
  if (norm.pool.any() && is_differentiated)
    result.chosen = at::empty_like(result.output, at::kByte);
  point_to(norm, result.channels);
  const at::Tensor add =
      o.add.defined() ? o.add.contiguous(format) : at::Tensor();  // held until the pass is over
  norm.add = add.defined() ? add.const_data_ptr() : nullptr;
  norm.output = result.output.mutable_data_ptr();
  norm.chosen = result.chosen.defined() ? result.chosen.mutable_data_ptr<std::uint8_t>() : nullptr;
  passes.run(norm, BatchNormPass::forward);
  return result;
}

}  // namespace

/// Autograd's node. Its name is what graphs and messages show.
struct BatchNormReluBackward : torch::autograd::Function<BatchNormReluBackward> {
  /// The tensors are those of the call, and given for autograd to find.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const Optional&,
                            const Optional&, const Optional&, const Call* call,
                            const Engine* engine) {
    const BatchNormRelu& o = call->options;
    const Forward result = forward_of(*call, *engine, /*is_differentiated=*/true);
    const bool adds = o.add.defined(), masks = adds && o.relu && !call->pools();
    context->save_for_backward({input, call->weight, call->bias, result.channels,
                                masks ? result.output : at::Tensor(), result.chosen});
    auto& data = context->saved_data;
    data["training"] = o.training;
    data["relu"] = o.relu;
    data["add"] = adds;
    data["eps"] = o.eps;
    data["device"] = reinterpret_cast<std::int64_t>(engine->device);
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
                      .channels = tensors[3],
                      .output = tensors[4],
                      .chosen = tensors[5],
                      .training = data["training"].toBool(),
                      .relu = data["relu"].toBool(),
                      .has_add = data["add"].toBool(),
                      .eps = data["eps"].toDouble(),
                      .pool = {{pool[0], pool[1]}, {pool[2], pool[3]}, {pool[4], pool[5]}}};
    const at::Tensor& gradient = gradients[0];
    Engine engine;
    if (!at::GradMode::is_enabled() &&
        products::is_ordinary({&saved.input, &gradient}, saved.input.device().type())) {
      engine.device = reinterpret_cast<const kernels::CudaKernels*>(data["device"].toInt());
      if (!engine.device) engine.cpu = kernels::cpu_kernels();
    }
    const Gradients result = engine ? gradients_by_kernels(saved, gradient, engine)
                                    : gradients_by_operators(saved, gradient);
    return {result.input,
            saved.weight.defined() ? result.weight : at::Tensor(),
            saved.bias.defined() ? result.bias : at::Tensor(),
            result.add,
            at::Tensor(),
            at::Tensor()};
  }
};

at::Tensor fused(const Call& call, const Engine& engine) {
  const auto wants = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.requires_grad();
  };
  const bool is_differentiated =
      at::GradMode::is_enabled() &&
      (wants(call.input) || wants(call.weight) || wants(call.bias) || wants(call.options.add));
  if (!is_differentiated) return forward_of(call, engine, false).output;
  const auto given = [](const at::Tensor& tensor) {
    return tensor.defined() ? Optional(tensor) : Optional();
  };
  return BatchNormReluBackward::apply(call.input, given(call.weight), given(call.bias),
                                      given(call.options.add), &call, &engine);
}

}  // namespace demi::batch_norm
