#include "demi/batch_norm/gradients.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstddef>
#include <cstdint>

#include "demi/batch_norm/channels.h"

namespace demi::batch_norm {

using kernels::BatchNormPass;
using torch::autograd::variable_list;

Gradients gradients_by_kernels(const Saved& saved, const at::Tensor& gradient,
                               const Engine& engine) {
  const at::Tensor& x = saved.input;
  kernels::BatchNorm norm = described(x, saved.relu, saved.pool);
  const auto format = format_of(x);
  const at::Tensor above = gradient.contiguous(format);
  Gradients result;
  result.input = at::empty(x.sizes(), x.options(), format);
  if (saved.has_add) result.add = at::empty_like(result.input);
  point_to(norm, saved.channels);
  // Backward only reads them; the struct's members are for both ways.
  norm.output = saved.output.defined() ? const_cast<void*>(saved.output.const_data_ptr()) : nullptr;
  norm.chosen = saved.chosen.defined()
                    ? const_cast<std::uint8_t*>(saved.chosen.const_data_ptr<std::uint8_t>())
                    : nullptr;
  norm.output_gradient = above.const_data_ptr();
  norm.add_gradient = result.add.defined() ? result.add.mutable_data_ptr() : nullptr;
  norm.input_gradient = result.input.mutable_data_ptr();

  const Passes passes(engine, x);
  const at::Tensor corrections = passes.floats({2, norm.channels});
  auto* const mean = corrections.mutable_data_ptr<float>();
  result.weight = passes.floats({norm.channels});
  result.bias = passes.floats({norm.channels});
  passes.gradients(norm, {.channels = saved.channels.const_data_ptr<float>(),
                          .corrections = mean,
                          .weight = result.weight.mutable_data_ptr<float>(),
                          .bias = result.bias.mutable_data_ptr<float>()});
  if (saved.training) {
    norm.mean_gradient = mean;
    norm.slope = mean + norm.channels;
  }
  passes.run(norm, BatchNormPass::backward);
  return result;
}

namespace {

/// The gradient of what ReLU and pooling were given.
at::Tensor gradient_of_pooling(const Saved& saved, const at::Tensor& above) {
  const MaxPooling& pool = saved.pool;
  const at::Tensor places = saved.chosen.to(at::kLong), none = places == kernels::kNoPlace;
  const auto origins = [&](std::size_t d) {
    return at::arange(places.size(static_cast<std::int64_t>(d) + 2), places.options()) *
               pool.stride[d] -
           pool.padding[d];
  };
  const at::Tensor rows = origins(0).unsqueeze(1) + places.div(pool.size[1], "floor");
  const at::Tensor columns = origins(1) + places.remainder(pool.size[1]);
  const at::Tensor indices =
      (rows * saved.input.size(3) + columns).masked_fill(none, 0).contiguous(format_of(above));
  return at::max_pool2d_with_indices_backward(above.masked_fill(none, 0), saved.input, pool.size,
                                              pool.stride, pool.padding, {1, 1},
                                              /*ceil_mode=*/false, indices);
}

}  // namespace

Gradients gradients_by_operators(const Saved& saved, const at::Tensor& gradient) {
  const at::Tensor &x = saved.input, &weight = saved.weight, &bias = saved.bias;
  const bool again =
      at::GradMode::is_enabled();  // else only once, of a gradient that kernels cannot read
  const at::AutoGradMode differentiable(true);
  at::Tensor mean, variance;
  if (!saved.training) {
    mean = saved.channels[0];
    variance = saved.channels[1].pow(-2) - saved.eps;
  }
  at::Tensor y = at::batch_norm(x, weight, bias, mean, variance, saved.training, 0, saved.eps,
                                at::globalContext().userEnabledCuDNN());
  at::Tensor above = gradient;
  Gradients result;
  if (saved.has_add) {
    // The sum is not kept, and what was made of it says where the gradient passes.
    if (saved.chosen.defined())
      above = gradient_of_pooling(saved, above);
    else if (saved.relu)
      above = at::threshold_backward(above, saved.output, 0);
    result.add = above;
  } else {
    if (saved.relu) y = at::relu(y);
    if (saved.chosen.defined())
      y = at::max_pool2d(y, saved.pool.size, saved.pool.stride, saved.pool.padding);
  }
  variable_list of;
  for (const at::Tensor* one : {&x, &weight, &bias})
    if (one->defined() && one->requires_grad()) of.push_back(*one);
  if (of.empty()) return result;
  const variable_list found = torch::autograd::grad({y}, of, {above}, /*retain_graph=*/again,
                                                    /*create_graph=*/again);
  std::size_t next = 0;
  if (x.requires_grad()) result.input = found[next++];
  if (weight.defined() && weight.requires_grad()) result.weight = found[next++];
  if (bias.defined() && bias.requires_grad()) result.bias = found[next++];
  return result;
}

}  // namespace demi::batch_norm
