#include "demi/activation/gelu.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include "demi/kernels/cpu_kernels.h"
#include "demi/products/no_autocast.h"
#include "demi/products/through_fp32.h"
#include "demi/tensor/dtype.h"

namespace demi {
namespace {

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

at::Tensor without_gaps(const at::Tensor& x) {
  return x.is_non_overlapping_and_dense() ? x : x.contiguous();
}

at::Tensor computed(const at::Tensor& x) {
  const at::Tensor from = without_gaps(x), y = at::empty_like(from);
  const auto storage = tensor::storage_of(x.scalar_type());
  in_parallel(y.numel(), [&, k = kernels::cpu_kernels()](std::int64_t first, std::int64_t count) {
    k->gelu(at_element_of_result(y, first), storage, at_element(from, first), count);
  });
  return y;
}

at::Tensor gradient_computed(const at::Tensor& gradient, const at::Tensor& x) {
  const at::Tensor from = without_gaps(x), result = at::empty_like(from);
  const at::Tensor above =
      gradient.strides() == from.strides() ? gradient : at::empty_like(from).copy_(gradient);
  const auto storage = tensor::storage_of(x.scalar_type());
  in_parallel(x.numel(), [&, k = kernels::cpu_kernels()](std::int64_t first, std::int64_t count) {
    k->gelu_gradient(at_element_of_result(result, first), storage, at_element(above, first),
                     at_element(from, first), count);
  });
  return result;
}

/// Whether the kernels may read it.
bool is_for_kernels(const at::Tensor& x) {
  const auto dtype = x.scalar_type();
  return (dtype == at::kFloat || tensor::is_16_bit(dtype)) && products::is_ordinary({&x}) &&
         kernels::cpu_kernels();
}

struct Gelu : torch::autograd::Function<Gelu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return computed(x);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const products::NoAutocast none;
    const at::Tensor x = context->get_saved_variables()[0], &gradient = gradients[0];
    const bool by_kernel =
        !at::GradMode::is_enabled() && is_for_kernels(x) && products::is_ordinary({&x, &gradient});
    return {by_kernel ? gradient_computed(gradient, x) : at::gelu_backward(gradient, x, "tanh")};
  }
};

at::Tensor differentiable(const at::Tensor& x) {
  return at::GradMode::is_enabled() && x.requires_grad() ? Gelu::apply(x) : computed(x);
}

}  // namespace

at::Tensor gelu(const at::Tensor& x, std::string_view approximate) {
  // The op is called in a region, since a policy may name it.
  if (approximate != "tanh" || !x.defined() || at::autocast::is_autocast_enabled(at::kCPU) ||
      !is_for_kernels(x))
    return at::gelu(x, approximate);
  RECORD_FUNCTION("demi::gelu", std::vector<c10::IValue>({x}));
  return differentiable(x);
}

namespace activation {

std::optional<at::Tensor> gelu_in_region(const at::Tensor& x, std::string_view approximate) {
  if (approximate != "tanh" || !tensor::is_16_bit(x.scalar_type()) || !is_for_kernels(x))
    return std::nullopt;
  return differentiable(x);
}

}  // namespace activation
}  // namespace demi
