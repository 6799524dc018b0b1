#include "demi/nn/norm.h"

#include <ATen/ATen.h>

#include <string>

#include "demi/nn/require.h"

namespace demi::nn {

NormImpl::NormImpl(const NormOptions& options) : options_(options) {
  require_size("nn.Norm", "width", options.width);
  require("nn.Norm", options.eps >= 0, "eps is negative", options.eps, "0 or more");
  if (options.weight) weight = register_parameter("weight", at::ones({options.width}));
  if (options.weight && options.bias && options.kind == NormKind::layer_norm)
    bias = register_parameter("bias", at::zeros({options.width}));
}

at::Tensor NormImpl::forward(const at::Tensor& input) const {
  require_features("nn.Norm", input, options_.width);
  const auto given = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::optional(tensor) : std::nullopt;
  };
  const at::Tensor out =
      options_.kind == NormKind::layer_norm
          ? at::layer_norm(input, {options_.width}, given(weight), given(bias), options_.eps)
          : at::rms_norm(input, {options_.width}, given(weight), options_.eps);
  return out.to(input.scalar_type());
}

}  // namespace demi::nn
