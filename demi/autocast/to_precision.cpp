#include "demi/autocast/to_precision.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>

#include "demi/autocast/normalisation.h"
#include "demi/core/error.h"
#include "demi/tensor/dtype.h"

namespace demi {
namespace {

template <class... Layers>
bool is_any_of(const torch::nn::Module& module) {
  return (... || (dynamic_cast<const Layers*>(&module) != nullptr));
}

using tensor::is_16_bit;

void check_storage_dtype(c10::ScalarType dtype) {
  if (is_16_bit(dtype) || dtype == c10::ScalarType::Float || dtype == c10::ScalarType::Double)
    return;
  refuse({.where = "autocast.to_precision",
          .what = "a model cannot be stored in this dtype",
          .seen = c10::toString(dtype),
          .accepted = "fp16, bf16, fp32, fp64"});
}

// Converts as Module::to does: the tensor object stays, its data is replaced.
void convert(at::Tensor& tensor, c10::ScalarType dtype) {
  if (!tensor.defined()) return;
  // Drops the gradient even if the tensor has the dtype already: half of a sum of gradients is
  // useless.
  if (tensor.grad().defined()) tensor.mutable_grad() = at::Tensor();
  if (!tensor.is_floating_point() || tensor.scalar_type() == dtype) return;
  torch::NoGradGuard no_grad;
  tensor.set_data(tensor.detach().to(dtype));
}

template <class Layer>
bool flatten_if(torch::nn::Module& module) {
  auto* layer = dynamic_cast<Layer*>(&module);
  if (layer) layer->flatten_parameters();
  return layer;
}

}  // namespace

Normalisation::~Normalisation() = default;

bool is_normalisation(const torch::nn::Module& module) {
  namespace nn = torch::nn;
  return is_any_of<Normalisation, nn::BatchNorm1dImpl, nn::BatchNorm2dImpl, nn::BatchNorm3dImpl,
                   nn::InstanceNorm1dImpl, nn::InstanceNorm2dImpl, nn::InstanceNorm3dImpl,
                   nn::LayerNormImpl, nn::GroupNormImpl, nn::LocalResponseNormImpl,
                   nn::CrossMapLRN2dImpl>(module);
}

void to_precision(torch::nn::Module& module, c10::ScalarType dtype, bool keep_normalisation_fp32) {
  check_storage_dtype(dtype);
  const bool keeps = keep_normalisation_fp32 && is_16_bit(dtype);
  // Children are visited by reference: modules() returns shared pointers, which a module on the
  // stack does not have.
  const auto own_dtype = keeps && is_normalisation(module) ? c10::ScalarType::Float : dtype;
  for (auto& parameter : module.named_parameters(/*recurse=*/false))
    convert(parameter.value(), own_dtype);
  for (auto& buffer : module.named_buffers(/*recurse=*/false)) convert(buffer.value(), own_dtype);
  for (const auto& child : module.children()) to_precision(*child, dtype, keep_normalisation_fp32);
  flatten_if<torch::nn::RNNImpl>(module) || flatten_if<torch::nn::LSTMImpl>(module) ||
      flatten_if<torch::nn::GRUImpl>(module);
}

at::Tensor to_precision(const at::Tensor& tensor, c10::ScalarType dtype) {
  check_storage_dtype(dtype);
  return tensor.defined() && tensor.is_floating_point() ? tensor.to(dtype) : tensor;
}

}  // namespace demi
