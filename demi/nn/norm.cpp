#include "demi/nn/norm.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

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

at::Tensor NormImpl::forward(const at::Tensor& input) { return forward_add(input, {}).norm; }

SumAndNorm NormImpl::forward_add(const at::Tensor& input, const at::Tensor& add,
                                 std::optional<at::ScalarType> dtype) {
  require_features("nn.Norm", input, options_.width);
  const AddNormOptions options{.eps = options_.eps, .dtype = dtype};
  return options_.kind == NormKind::layer_norm ? add_layer_norm(input, add, weight, bias, options)
                                               : add_rms_norm(input, add, weight, options);
}

}  // namespace demi::nn
