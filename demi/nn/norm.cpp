#include "demi/nn/norm.h"

#include <ATen/ATen.h>

#include <string>

#include "demi/nn/require.h"

namespace demi::nn {

NormImpl::NormImpl(const NormOptions& options) : options_(options) {
  require_size("nn.Norm", "width", options.width);
  require("nn.Norm", options.eps >= 0, "eps is negative", options.eps, "0 or more");
  NormImpl::reset();
}

void NormImpl::reset() {
  const NormOptions& o = options_;
  if (o.weight) weight = register_parameter("weight", at::ones({o.width}));
  if (o.weight && o.bias && o.kind == NormKind::layer_norm)
    bias = register_parameter("bias", at::zeros({o.width}));
}

void NormImpl::pretty_print(std::ostream& stream) const {
  stream << "demi::nn::Norm(" << options_.width << ", "
         << (options_.kind == NormKind::layer_norm ? "layer_norm" : "rms_norm")
         << ", eps=" << options_.eps << ", weight=" << (weight.defined() ? "true" : "false")
         << ", bias=" << (bias.defined() ? "true" : "false") << ")";
}

at::Tensor NormImpl::forward(const at::Tensor& input) {
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
