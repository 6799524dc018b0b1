#include "demi/add_norm/add_norm.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "demi/add_norm/call.h"

namespace demi {
namespace {

using add_norm::Results;
using Optional = std::optional<at::Tensor>;

Optional given(const at::Tensor& tensor) {
  return tensor.defined() ? Optional(tensor) : Optional();
}

// The normed rows first: who observes operators takes the first result for that of the layer.
Results compute(const add_norm::Call& call) {
  const Results sum_and_norm = is_for_kernels(call) ? fused(call) : composed(call);
  return {std::get<1>(sum_and_norm), std::get<0>(sum_and_norm)};
}

// The operators' kernels for each device, above autograd: what they call is differentiated.
Results layer_norm(const at::Tensor& input, const Optional& add, const Optional& weight,
                   const Optional& bias, double eps, std::optional<at::ScalarType> dtype) {
  return compute({.input = input,
                  .add = add.value_or(at::Tensor()),
                  .weight = weight.value_or(at::Tensor()),
                  .bias = bias.value_or(at::Tensor()),
                  .centered = true,
                  .eps = eps,
                  .dtype = dtype.value_or(at::ScalarType::Undefined)});
}

Results rms_norm(const at::Tensor& input, const Optional& add, const Optional& weight, double eps,
                 std::optional<at::ScalarType> dtype) {
  return compute({.input = input,
                  .add = add.value_or(at::Tensor()),
                  .weight = weight.value_or(at::Tensor()),
                  .bias = {},
                  .centered = false,
                  .eps = eps,
                  .dtype = dtype.value_or(at::ScalarType::Undefined)});
}

// Without `add` the sum is the input, or a view of it.
TORCH_LIBRARY_FRAGMENT(demi, library) {
  const auto key = c10::DispatchKey::CompositeImplicitAutograd;
  library.def(
      "add_layer_norm(Tensor(a) input, Tensor? add, Tensor? weight, Tensor? bias, float eps, "
      "ScalarType? dtype) -> (Tensor norm, Tensor(a) sum)");
  library.impl("add_layer_norm", torch::dispatch(key, TORCH_FN(layer_norm)));
  library.def(
      "add_rms_norm(Tensor(a) input, Tensor? add, Tensor? weight, float eps, ScalarType? dtype) -> "
      "(Tensor norm, Tensor(a) sum)");
  library.impl("add_rms_norm", torch::dispatch(key, TORCH_FN(rms_norm)));
}

template <class Signature>
c10::TypedOperatorHandle<Signature> operator_of(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

SumAndNorm both(const Results& results) {
  return {.sum = std::get<1>(results), .norm = std::get<0>(results)};
}

}  // namespace

SumAndNorm add_layer_norm(const at::Tensor& input, const at::Tensor& add, const at::Tensor& weight,
                          const at::Tensor& bias, const AddNormOptions& options) {
  static const auto op = operator_of<decltype(layer_norm)>("demi::add_layer_norm");
  return both(op.call(input, given(add), given(weight), given(bias), options.eps, options.dtype));
}

SumAndNorm add_rms_norm(const at::Tensor& input, const at::Tensor& add, const at::Tensor& weight,
                        const AddNormOptions& options) {
  static const auto op = operator_of<decltype(rms_norm)>("demi::add_rms_norm");
  return both(op.call(input, given(add), given(weight), options.eps, options.dtype));
}

}  // namespace demi
