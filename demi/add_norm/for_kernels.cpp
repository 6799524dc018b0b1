#include <array>

#include "demi/add_norm/call.h"
#include "demi/autocast/op_table.h"
#include "demi/autocast/parts.h"
#include "demi/autocast/region_rules.h"
#include "demi/kernels/cpu_kernels.h"
#include "demi/products/through_fp32.h"
#include "demi/tensor/dtype.h"

namespace demi::add_norm {
namespace {

/// Whether a policy names one of the operators, or one of the parameters.
bool has_rules(const Call& call) {
  if (parts_in_use())
    for (const at::Tensor* tensor : {&call.weight, &call.bias})
      if (tensor->defined() && dtype_of_part(*tensor)) return true;
  static const std::array<int, 2> layer_norm{op_number("add.Tensor"), op_number("layer_norm")},
      rms_norm{op_number("add.Tensor"), op_number("rms_norm")};
  return region_has_rule(call.input.device().type(), call.centered ? layer_norm : rms_norm);
}

/// (D) of FP32 or as the sum, without gaps on a CPU, or undefined.
bool is_ordinary_of(const at::Tensor& features, const at::Tensor& input) {
  return !features.defined() ||
         ((features.scalar_type() == at::kFloat || features.scalar_type() == input.scalar_type()) &&
          features.dim() == 1 && features.size(0) == input.size(-1) && features.is_contiguous() &&
          products::is_ordinary({&features}));
}

/// The sum's dtype, or 16 bits beside a sum of FP32.
bool fits(at::ScalarType dtype, at::ScalarType sum) {
  return dtype == sum || (sum == at::kFloat && tensor::is_16_bit(dtype));
}

}  // namespace

bool is_for_kernels(const Call& call) {
  const at::Tensor &x = call.input, &add = call.add;
  const auto dtype = x.scalar_type();
  // Asked first: a mark that came with a copy's memory belongs to the parameter once it is seen.
  if (has_rules(call) || x.dim() < 1 || !(dtype == at::kFloat || tensor::is_16_bit(dtype)) ||
      !x.is_contiguous() || !products::is_ordinary({&x}) || !kernels::cpu_kernels())
    return false;
  if (add.defined() && !(add.sizes() == x.sizes() && fits(add.scalar_type(), dtype) &&
                         products::is_ordinary({&add})))
    return false;
  if (call.dtype != at::ScalarType::Undefined && !fits(call.dtype, dtype)) return false;
  return is_ordinary_of(call.weight, x) && is_ordinary_of(call.bias, x);
}

}  // namespace demi::add_norm
