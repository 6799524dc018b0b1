#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "demi/kernels/host_device.h"
#include "demi/kernels/inverse_scale.h"
#include "demi/kernels/rules/all.h"
#include "demi/kernels/step_table.h"

// The decisions between the passes. Pure functions of the structs, which the host runs for CPU
// tables and a kernel for CUDA tables, so that nothing is read back. decide.h offers them for the
// host.
namespace demi::kernels {
namespace {

DEMI_HOST_DEVICE float inverse_scale_of(const StepInputs& inputs) {
  return inputs.scale ? inverse_of_scale(*inputs.scale) : 1.0f;
}

/// torch.nn.utils.clip_grad_norm_: FP32 from the norm on; NaN stays NaN.
DEMI_HOST_DEVICE float clip_factor_of(float max_norm, float gradient_norm) {
  const float factor = max_norm / (gradient_norm + 1e-6f);
  return max_norm == kNoLimit || factor > 1.0f ? 1.0f : factor;
}

/// Converts a block's sums of unscaled gradients to the units of scaled ones. Finite numbers stay
/// finite.
DEMI_HOST_DEVICE Partial with_scale(Partial sums, float inverse_scale) {
  const double inverse = inverse_scale;
  sums.sum_of_squares /= inverse * inverse;
  if (sums.greatest_bits >= 0x7F800000u) return sums;
  const float greatest = static_cast<float>(std::bit_cast<float>(sums.greatest_bits) / inverse);
  const auto bits = std::bit_cast<std::uint32_t>(greatest);
  sums.greatest_bits = bits < 0x7F800000u ? bits : 0x7F7FFFFFu;
  return sums;
}

/// Puts the sums of pass 1 into the state: found_inf, norm, greatest.
DEMI_HOST_DEVICE void record_sums(const StepInputs& inputs, double sum_of_squares,
                                  std::uint32_t greatest_bits, StepState& state) {
  constexpr float kGreatest = std::numeric_limits<float>::max();
  state.inverse_scale = inverse_scale_of(inputs);
  state.sum_of_squares = sum_of_squares;
  state.found_inf = greatest_bits >= 0x7F800000u ? 1.0f : 0.0f;
  state.greatest = std::bit_cast<float>(greatest_bits);
  state.gradient_norm =
      static_cast<float>(sqrt(sum_of_squares) * static_cast<double>(state.inverse_scale));
  if (!inputs.record) return;
  // A scale under 1 must not turn a finite gradient into one that is not.
  const float greatest = state.greatest * state.inverse_scale;
  inputs.record->found_inf = state.found_inf;
  inputs.record->gradient_norm = state.gradient_norm;
  inputs.record->greatest = state.found_inf == 0.0f && greatest > kGreatest ? kGreatest : greatest;
}

/// Decides whether to skip, and the clip factor; counts the step. Returns whether it is taken.
DEMI_HOST_DEVICE bool record_decision(const StepInputs& inputs, StepState& state) {
  const float found = inputs.found_inf ? *inputs.found_inf : state.found_inf;
  state.inverse_scale = inverse_scale_of(inputs);
  const bool bad = (inputs.skip_nonfinite && found != 0.0f) || !is_usable(state.inverse_scale);
  const bool above = !bad && inputs.above_norm && *inputs.above_norm != 0.0f;
  const bool skip = bad || above;
  state.skipped = skip ? 1.0f : 0.0f;
  (skip ? state.skips : state.taken) += 1;
  state.clip_factor = clip_factor_of(inputs.max_norm, state.gradient_norm);
  if (!inputs.record) return !skip;
  inputs.record->skipped = state.skipped;
  inputs.record->above_norm = above ? 1.0f : 0.0f;
  inputs.record->scale = inputs.scale ? *inputs.scale : 1.0f;
  if (!inputs.measured) {
    inputs.record->gradient_norm = std::numeric_limits<float>::quiet_NaN();
    inputs.record->found_inf = 0.0f;
  }
  return !skip;
}

/// The learning rate of a group at its `taken`-th step (0 is the first).
DEMI_HOST_DEVICE double learning_rate(const Group& group, std::int64_t taken) {
  if (!group.scheduled_rates || group.scheduled_count <= 0) return group.learning_rate;
  return group.scheduled_rates[taken < group.scheduled_count ? taken : group.scheduled_count - 1];
}

/// Numbers of one group, computed in FP64 and rounded once, as Python does.
DEMI_HOST_DEVICE Coefficients common_coefficients(const Group& group, const At& at) {
  Coefficients c{};
  c.factor = 1.0f;
  c.limit = kNoLimit;
  c.decay = static_cast<float>(group.weight_decay);
  c.negative_rate = static_cast<float>(-at.rate);
  c.momentum = static_cast<float>(group.momentum);
  c.one_minus_dampening = static_cast<float>(1.0 - group.dampening);
  c.beta1 = static_cast<float>(group.beta1);
  c.one_minus_beta1 = static_cast<float>(1.0 - group.beta1);
  c.beta2 = static_cast<float>(group.beta2);
  c.one_minus_beta2 = static_cast<float>(1.0 - group.beta2);
  c.epsilon = static_cast<float>(group.epsilon);
  c.flags = (at.step == 1 ? kFirst : 0u) | (group.weight_decay != 0.0 ? kDecay : 0u) |
            (group.nesterov ? kNesterov : 0u) | (group.amsgrad ? kAmsgrad : 0u) |
            (group.maximize ? kMaximize : 0u);
  return c;
}

template <UpdateRule rule>
DEMI_HOST_DEVICE Coefficients coefficients_of(const Group& group, const At& at) {
  Coefficients c = common_coefficients(group, at);
  c.flags |= RuleOf<rule>::flags(group);
  RuleOf<rule>::coefficients(c, group, at);
  c.arrays = arrays_kept<rule>(c.flags);
  return c;
}

/// The numbers of a tensor's group at its t-th step (1 is the first). rate: learning rate;
/// rate_factor: the tensor's.
/// `scalar`: the rule's state of that form, which moves on. A trust ratio is completed by
/// trust_rate below.
DEMI_HOST_DEVICE Coefficients group_coefficients(UpdateRule rule, const Group& group, double rate,
                                                 std::int64_t t, float* scalar = nullptr,
                                                 double rate_factor = 1) {
  const At at{rate, t, scalar, rate_factor};
  switch (rule) {
#define DEMI_RULE_ENTRY(name, Name) \
  case UpdateRule::name:            \
    return coefficients_of<UpdateRule::name>(group, at);
#include "demi/kernels/rules/entries.h"
    case UpdateRule::muon_apply:
    case UpdateRule::ema:
      break;
  }
  return coefficients_of<UpdateRule::ema>(group, at);
}

/// The direction of a tensor of the table's range; null if the table has none.
DEMI_HOST_DEVICE void* direction_of(const StepTable& table, std::int32_t tensor) {
  if (!table.direction) return nullptr;
  const std::int64_t before = table.first_block[tensor] - table.range.first_block;
  return static_cast<unsigned char*>(table.direction) +
         before * kBlock * bytes_of(table.direction_storage);
}

/// The tensor's own numbers on top of its group's.
DEMI_HOST_DEVICE Coefficients tensor_coefficients(Coefficients c, const TensorEntry& tensor) {
  c.factor = tensor.factor ? *tensor.factor : 1.0f;
  c.limit = tensor.limit;
  if (tensor.limit != kNoLimit) c.flags |= kLimited;
  return c;
}

/// A rule with a trust ratio: -lr × ‖x‖ / ‖update‖; the ratio is 1 where either norm is 0 (You et
/// al. 2020, algorithm 2, with phi the identity up to trust_limit).
DEMI_HOST_DEVICE float trust_rate(const Group& group, double rate, double parameter_squares,
                                  double update_squares) {
  double ratio = 1.0;
  if (group.adapt && parameter_squares > 0.0 && update_squares > 0.0) {
    ratio = sqrt(parameter_squares) / sqrt(update_squares);
    if (ratio > group.trust_limit) ratio = group.trust_limit;
  }
  return static_cast<float>(-(rate * ratio));
}

}  // namespace
}  // namespace demi::kernels
