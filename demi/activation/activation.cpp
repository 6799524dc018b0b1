#include "demi/activation/activation.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include "demi/kernels/cpu_kernels.h"
#include "demi/products/no_autocast.h"
#include "demi/products/through_fp32.h"
#include "demi/tensor/dtype.h"

namespace demi {
namespace {

using kernels::Activation;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Calls run(first, count) for parts of n elements, by LibTorch's threads.
template <class Run>
void in_parallel(std::int64_t n, Run run) {
  at::parallel_for(0, n, at::internal::GRAIN_SIZE,
                   [&](std::int64_t begin, std::int64_t end) { run(begin, end - begin); });
}

const char* at_element(const at::Tensor& tensor, std::int64_t i) {
  return static_cast<const char*>(tensor.const_data_ptr()) + i * tensor.element_size();
}
char* at_element_of_result(const at::Tensor& tensor, std::int64_t i) {
  return static_cast<char*>(tensor.mutable_data_ptr()) + i * tensor.element_size();
}

at::Tensor computed(Activation which, const at::Tensor& x) {
  const at::Tensor from = x.is_non_overlapping_and_dense() ? x : x.contiguous();
  const at::Tensor y = at::empty_like(from);
  const auto storage = tensor::storage_of(x.scalar_type());
  in_parallel(y.numel(), [&, k = kernels::cpu_kernels()](std::int64_t first, std::int64_t count) {
    k->activate(which, at_element_of_result(y, first), storage, at_element(from, first), count);
  });
  return y;
}

at::Tensor gradient_computed(Activation which, const at::Tensor& gradient, const at::Tensor& x) {
  const at::Tensor from = x.is_non_overlapping_and_dense() ? x : x.contiguous();
  at::Tensor above = gradient;
  if (above.strides() != from.strides()) above = at::empty_like(from).copy_(gradient);
  const at::Tensor result = at::empty_like(from);
  const auto storage = tensor::storage_of(x.scalar_type());
  in_parallel(x.numel(), [&, k = kernels::cpu_kernels()](std::int64_t first, std::int64_t count) {
    k->activation_gradient(which, at_element_of_result(result, first), storage,
                           at_element(above, first), at_element(from, first), count);
  });
  return result;
}

/// Of ops that have derivatives of their own.
at::Tensor gradient_by_ops(Activation which, const at::Tensor& gradient, const at::Tensor& x) {
  if (which == Activation::silu) {
    const at::Tensor s = at::sigmoid(x);
    return gradient * s * (1 + x * (1 - s));
  }
  return at::gelu_backward(gradient, x, which == Activation::gelu_tanh ? "tanh" : "none");
}

/// Whether the kernels may read it.
bool is_for_kernels(const at::Tensor& x) {
  const auto dtype = x.scalar_type();
  return (dtype == at::kFloat || tensor::is_16_bit(dtype)) && products::is_ordinary({&x}) &&
         kernels::cpu_kernels();
}

/// In a region the op decides, since a policy may name it.
bool is_outside_of_regions(const at::Tensor& x) {
  return x.defined() && is_for_kernels(x) && !at::autocast::is_autocast_enabled(at::kCPU);
}

struct Activated : torch::autograd::Function<Activated> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, std::int64_t which) {
    context->save_for_backward({x});
    context->saved_data["which"] = which;
    return computed(static_cast<Activation>(which), x);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const products::NoAutocast none;
    const at::Tensor x = context->get_saved_variables()[0];
    const auto which = static_cast<Activation>(context->saved_data["which"].toInt());
    const bool by_kernel = !at::GradMode::is_enabled() && is_for_kernels(x) &&
                           gradients[0].scalar_type() == x.scalar_type() &&
                           products::is_ordinary({&gradients[0]});
    return {by_kernel ? gradient_computed(which, gradients[0], x)
                      : gradient_by_ops(which, gradients[0], x),
            at::Tensor()};
  }
};

at::Tensor differentiable(Activation which, const at::Tensor& x) {
  if (!at::GradMode::is_enabled() || !x.requires_grad()) return computed(which, x);
  return Activated::apply(x, static_cast<std::int64_t>(which));
}

std::optional<Activation> gelu_named(std::string_view approximate) {
  if (approximate == "none") return Activation::gelu;
  if (approximate == "tanh") return Activation::gelu_tanh;
  return std::nullopt;
}

}  // namespace

at::Tensor gelu(const at::Tensor& x, std::string_view approximate) {
  const auto which = gelu_named(approximate);
  if (!which || !is_outside_of_regions(x)) return at::gelu(x, approximate);
  RECORD_FUNCTION("demi::gelu", std::vector<c10::IValue>({x}));
  return differentiable(*which, x);
}

at::Tensor silu(const at::Tensor& x) {
  if (!is_outside_of_regions(x)) return at::silu(x);
  RECORD_FUNCTION("demi::silu", std::vector<c10::IValue>({x}));
  return differentiable(Activation::silu, x);
}

namespace activation {

std::optional<at::Tensor> gelu_in_region(const at::Tensor& x, std::string_view approximate) {
  const auto which = gelu_named(approximate);
  if (!which || !tensor::is_16_bit(x.scalar_type()) || !is_for_kernels(x)) return std::nullopt;
  return differentiable(*which, x);
}

std::optional<at::Tensor> silu_in_region(const at::Tensor& x) {
  if (!tensor::is_16_bit(x.scalar_type()) || !is_for_kernels(x)) return std::nullopt;
  return differentiable(Activation::silu, x);
}

}  // namespace activation
}  // namespace demi
