#include "demi/loop/observer.h"

#include <torch/types.h>

namespace demi::loop {

StepObserver::~StepObserver() = default;

at::Tensor StepView::gradient(const at::Tensor& parameter) const {
  const at::Tensor& held = parameter.grad();
  if (!held.defined()) return {};
  const bool is_wide = c10::toRealValueType(parameter.scalar_type()) == c10::kDouble;
  const auto real = is_wide ? c10::kDouble : c10::kFloat;
  const auto dtype = held.is_complex() ? c10::toComplexType(real) : real;
  return held.detach().to(dtype) / static_cast<double>(scaler.get_scale());
}

}  // namespace demi::loop
