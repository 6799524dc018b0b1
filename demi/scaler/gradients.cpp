#include "demi/scaler/gradients.h"

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <tuple>

#include "demi/step/layout.h"

namespace demi::scaler {
namespace {

bool before(const c10::Device& a, const c10::Device& b) {
  return std::make_tuple(a.type(), a.index()) < std::make_tuple(b.type(), b.index());
}

/// Any backend has these operations; the fused one below exists for some.
void unscale_one(const at::Tensor& gradient, const at::Tensor& inverse_scale,
                 at::Tensor& found_inf) {
  found_inf.logical_or_(gradient.isfinite().logical_not_().any());
  gradient.copy_(gradient.to(at::promote_types(gradient.scalar_type(), at::kFloat)) *
                 inverse_scale);
}

bool has_fused_check(const at::Tensor& gradient) {
  const auto dtype = gradient.scalar_type();
  if (gradient.is_cpu()) return dtype == at::kFloat || dtype == at::kDouble;
  return gradient.is_cuda() && (dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf);
}

}  // namespace

FoundInf no_devices() { return FoundInf(&before); }

at::Tensor joined(const FoundInf& found, c10::Device device) {
  at::Tensor all;
  for (const auto& [from, flag] : found) {
    const at::Tensor here = from == device ? flag : flag.to(device);
    all = all.defined() ? at::maximum(all, here) : here;
  }
  return all;
}

bool has_gradients(const torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups())
    for (const at::Tensor& parameter : group.params())
      if (parameter.grad().defined()) return true;
  return false;
}

namespace {

// `sums`: in a copy.
std::vector<at::Tensor> values_of(torch::optim::Optimizer& optimizer, bool sums) {
  std::vector<at::Tensor> values;
  for (auto& group : optimizer.param_groups()) {
    for (auto& parameter : group.params()) {
      at::Tensor& gradient = parameter.mutable_grad();
      if (!gradient.defined()) continue;
      if (!gradient.is_sparse()) {
        // An expanded one cannot be written to element by element.
        if (gradient.layout() == at::kStrided && optim::overlaps_itself(gradient))
          gradient = gradient.contiguous();
        values.push_back(gradient.is_complex() ? at::view_as_real(gradient) : gradient);
        continue;
      }
      if (gradient.scalar_type() == at::kHalf && !gradient.is_coalesced())
        gradient = gradient.coalesce();
      values.push_back(sums ? gradient.coalesce().values() : gradient._values());
    }
  }
  return values;
}

}  // namespace

std::vector<at::Tensor> gradient_values(torch::optim::Optimizer& optimizer) {
  return values_of(optimizer, /*sums=*/false);
}

std::vector<at::Tensor> summed_gradient_values(torch::optim::Optimizer& optimizer) {
  const at::NoGradGuard no_grad;
  return values_of(optimizer, /*sums=*/true);
}

FoundInf unscale_and_check(const std::vector<at::Tensor>& gradients,
                           const at::Tensor& inverse_scale) {
  const at::NoGradGuard no_grad;
  FoundInf found(&before);
  std::map<c10::Device, at::Tensor, decltype(&before)> inverse(&before);
  std::map<std::pair<c10::DeviceType, std::pair<int, at::ScalarType>>, std::vector<at::Tensor>>
      fused;
  for (const auto& gradient : gradients) {
    const auto device = gradient.device();
    if (!found.contains(device)) {
      found[device] = at::zeros({}, at::TensorOptions(device).dtype(at::kFloat));
      inverse[device] = inverse_scale.to(device);
    }
    if (has_fused_check(gradient))
      fused[{device.type(), {device.index(), gradient.scalar_type()}}].push_back(gradient);
    else
      unscale_one(gradient, inverse[device], found[device]);
  }
  for (auto& [key, list] : fused) {
    const auto device = list.front().device();
    at::_amp_foreach_non_finite_check_and_unscale_(list, found[device], inverse[device]);
  }
  return found;
}

at::Tensor greatest_magnitude(const std::vector<at::Tensor>& gradients) {
  const at::NoGradGuard no_grad;
  at::Tensor greatest;
  for (const auto& gradient : gradients) {
    if (gradient.numel() == 0) continue;
    const at::Tensor one = gradient.abs().amax().to(at::kFloat);
    greatest = greatest.defined() ? at::maximum(greatest, one.to(greatest.device())) : one;
  }
  return greatest.defined() ? greatest : at::zeros({});
}

at::Tensor total_norm(const std::vector<at::Tensor>& gradients) {
  const at::NoGradGuard no_grad;
  at::Tensor squares;
  for (const auto& gradient : gradients) {
    const at::Tensor norm =
        at::linalg_vector_norm(gradient.flatten(), 2, std::nullopt, false, at::kDouble);
    const at::Tensor square = norm * norm;
    squares = squares.defined() ? squares + square.to(squares.device()) : square;
  }
  return squares.defined() ? squares.sqrt().to(at::kFloat) : at::zeros({});
}

}  // namespace demi::scaler
