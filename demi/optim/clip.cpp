#include "demi/optim/clip.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <unordered_set>

#include "demi/core/error.h"
#include "demi/optim/optimizer.h"
#include "demi/step/ownership.h"
#include "demi/step/pending_step.h"

namespace demi::optim {
namespace {

/// Parameters that have a gradient, by the demi optimizer that will step them. Null: no such one.
using ByOwner = std::map<Optimizer*, std::vector<at::Tensor>>;

/// Each parameter once, however often it is named.
ByOwner by_owner(const std::vector<at::Tensor>& parameters, const char* where) {
  ByOwner owned;
  std::unordered_set<const at::TensorImpl*> seen;
  for (const auto& parameter : parameters) {
    if (!parameter.defined())
      throw UsageError({.where = where,
                        .what = "a parameter is undefined",
                        .accepted = "tensors, with or without a gradient",
                        .advice = "hand over module->parameters()"});
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    if (!parameter.grad().defined()) continue;
    const Owners owners = owners_of(parameter);
    const bool narrow = parameter.grad().scalar_type() != parameter.scalar_type();
    if (owners.count > 1 && narrow)
      throw UsageError({.where = where,
                        .what = "a 16-bit gradient belongs to several demi optimizers, so there is "
                                "no one step to clip it in",
                        .advice = "destroy the optimizer that is not in use"});
    owned[owners.count == 1 ? owners.last : nullptr].push_back(parameter);
  }
  return owned;
}

size_t gradient_count(const Optimizer& optimizer) {
  size_t count = 0;
  for (const auto& group : optimizer.param_groups())
    for (const auto& parameter : group.params()) count += parameter.grad().defined();
  return count;
}

at::Tensor norm_of(const at::Tensor& gradient, double norm_type) {
  const at::Tensor values = gradient.is_sparse() ? gradient.coalesce().values() : gradient;
  if (values.numel() == 0) return at::zeros({}, values.options().dtype(at::kDouble));
  const auto dtype = values.is_complex() ? at::kComplexDouble : at::kDouble;
  return at::linalg_vector_norm(values.to(dtype), norm_type);
}

/// fp64, (): the powers of norms are summed where no square can overflow.
at::Tensor total_norm(const ByOwner& owned, double norm_type) {
  std::vector<at::Tensor> norms;
  for (const auto& [owner, parameters] : owned)
    for (const auto& parameter : parameters)
      norms.push_back(
          norm_of(owner ? owner->unscaled_grad(parameter) : parameter.grad(), norm_type));
  if (norms.empty()) return at::zeros({}, at::kDouble);
  const auto device = norms.front().device();
  for (auto& norm : norms) norm = norm.to(device);
  return at::linalg_vector_norm(at::stack(norms), norm_type);
}

/// Whether there is an fp64 gradient that no demi optimizer holds: a demi optimizer's factors are
/// fp32.
bool has_fp64(const ByOwner& owned) {
  const auto loose = owned.find(nullptr);
  return loose != owned.end() &&
         std::any_of(loose->second.begin(), loose->second.end(), [](const at::Tensor& parameter) {
           return c10::toRealValueType(parameter.grad().scalar_type()) == at::kDouble;
         });
}

void check_norm(const at::Tensor& norm, bool error_if_nonfinite) {
  if (!error_if_nonfinite || std::isfinite(norm.item<double>())) return;
  throw TrainingError(
      {.where = "optim.clip_grad_norm_",
       .what = "the total norm of the gradients is not finite",
       .seen = std::to_string(norm.item<double>()),
       .advice = "let the step be skipped (error_if_nonfinite off), or look for what made it"});
}

}  // namespace

at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                           double norm_type, bool error_if_nonfinite) {
  constexpr auto kWhere = "optim.clip_grad_norm_";
  if (!(max_norm >= 0) || !(norm_type > 0))
    throw UsageError({.where = kWhere,
                      .what = "an argument is out of range",
                      .seen = c10::str("max_norm ", max_norm, ", norm_type ", norm_type),
                      .accepted = "a max_norm of 0 or more, a norm_type above 0"});
  const at::NoGradGuard no_grad;
  const ByOwner owned = by_owner(parameters, kWhere);
  if (owned.size() == 1 && norm_type == 2) {
    const auto& [owner, theirs] = *owned.begin();
    if (owner && theirs.size() == gradient_count(*owner)) {
      const at::Tensor norm = owner->pending().grad_norm();
      check_norm(norm, error_if_nonfinite);
      if (owner->pending().clip_norm(max_norm)) return norm;
    }
  }
  for (const auto& [owner, theirs] : owned)
    if (owner) owner->pending().apply_recorded_factors();
  const at::Tensor norm = total_norm(owned, norm_type);
  check_norm(norm, error_if_nonfinite);
  const at::Tensor factor = (max_norm / (norm + 1e-6)).clamp_max(1.0);
  for (const auto& [owner, theirs] : owned) {
    if (owner)
      owner->pending().multiply(theirs, factor);
    else
      for (const auto& parameter : theirs) parameter.grad().mul_(factor.to(parameter.device()));
  }
  return has_fp64(owned) ? norm : norm.to(at::kFloat);
}

void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) {
  constexpr auto kWhere = "optim.clip_grad_value_";
  if (!(clip_value >= 0))
    throw UsageError({.where = kWhere,
                      .what = "clip_value is out of range",
                      .seen = std::to_string(clip_value),
                      .accepted = "0 or more"});
  const at::NoGradGuard no_grad;
  for (const auto& [owner, theirs] : by_owner(parameters, kWhere)) {
    if (owner) {
      owner->pending().clip_value(theirs, clip_value);
    } else {
      for (const auto& parameter : theirs) parameter.grad().clamp_(-clip_value, clip_value);
    }
  }
}

}  // namespace demi::optim
