#include <ATen/ATen.h>

#include <optional>

#include "demi/add_norm/call.h"

namespace demi::add_norm {

Results composed(const Call& call) {
  const auto given = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::optional(tensor) : std::nullopt;
  };
  const at::Tensor sum = call.add.defined() ? call.input + call.add : call.input;
  const std::int64_t width = sum.size(-1);
  const at::Tensor normed =
      call.centered ? at::layer_norm(sum, {width}, given(call.weight), given(call.bias), call.eps)
                    : at::rms_norm(sum, {width}, given(call.weight), call.eps);
  return {sum, normed.to(call.dtype == at::ScalarType::Undefined ? sum.scalar_type() : call.dtype)};
}

}  // namespace demi::add_norm
