#include "demi/tensor/range.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

namespace demi::tensor {
namespace {

/// LibTorch has no aminmax of uint16, uint32 and uint64: as int64, or as FP64 if a value is beyond
/// that. Other dtypes stay.
at::Tensor with_limits(const at::Tensor& values) {
  const c10::ScalarType dtype = values.scalar_type();
  if (dtype == at::kUInt16 || dtype == at::kUInt32) return values.to(at::kLong);
  if (dtype != at::kUInt64) return values;
  at::Tensor as_signed = values.view(at::kLong);
  return as_signed.lt(0).any().item<bool>() ? values.to(at::kDouble) : as_signed;
}

/// Least and greatest finite value; zeros if there is none.
std::pair<double, double> finite_limits(const at::Tensor& values) {
  const auto [least, most] = at::aminmax(values);
  const double a = least.item().toDouble(), b = most.item().toDouble();
  if (std::isfinite(a) && std::isfinite(b)) return {a, b};
  const at::Tensor finite = at::where(values.isfinite(), values, 0);
  return {finite.min().item().toDouble(), finite.max().item().toDouble()};
}

bool is_beyond(double value, c10::ScalarType dtype) {
  if (!c10::isIntegralType(dtype, /*includeBool=*/false))
    return !at::scalar_tensor(value, at::kDouble).to(dtype).to(at::kDouble).isfinite().item<bool>();
  const double most = std::ldexp(
      1, static_cast<int>(c10::elementSize(dtype)) * 8 - (c10::isSignedType(dtype) ? 1 : 0));
  return value >= most || value < (c10::isSignedType(dtype) ? -most : 0);
}

}  // namespace

std::optional<double> beyond_range(const at::Tensor& tensor, c10::ScalarType dtype) {
  const c10::ScalarType own = tensor.scalar_type();
  if (own == dtype || dtype == at::kBool || own == at::kBool || tensor.numel() == 0) return {};
  const at::NoGradGuard no_grad;
  at::Tensor values = with_limits(tensor.detach());
  if (values.scalar_type() == dtype) return {};  // FP64 rounds the greatest int64 to one beyond
  if (values.is_complex()) values = at::view_as_real(values.resolve_conj());
  if (values.is_floating_point() && values.element_size() == 1) values = values.to(at::kFloat);
  const auto [least, most] = finite_limits(values);
  const c10::ScalarType real = c10::toRealValueType(dtype);
  const bool is_low = is_beyond(least, real), is_high = is_beyond(most, real);
  if (!is_low && !is_high) return {};
  return is_low && (!is_high || -least > most) ? least : most;
}

}  // namespace demi::tensor
