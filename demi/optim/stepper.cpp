#include "demi/optim/stepper.h"

#include <torch/types.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <string>
#include <tuple>

#include "demi/kernels/decide.h"
#include "demi/kernels/decision.h"
#include "demi/kernels/path.h"
#include "demi/kernels/traffic.h"

namespace demi::optim {
namespace {

/// Null: tensor operations. Throws UsageError where the forced path cannot serve.
const kernels::CpuKernels* kernels_for(const at::Tensor& work,
                                       std::optional<kernels::Path> forced) {
  if (!work.is_cpu() || work.scalar_type() != at::kFloat) return nullptr;
  if (!forced) return kernels::cpu_kernels();
  const std::string name(kernels::name_of(*forced));
  return kernels::cpu_kernels(kernels::path_for(kernels::Device::cpu, name));
}

std::vector<TensorTable> tables_of(kernels::Rule rule, std::optional<kernels::Path> forced,
                                   const std::vector<Placed>& placed,
                                   const std::vector<kernels::Group>& groups) {
  using Key = std::tuple<int, int, bool>;  // device type and index, kernels of ours
  std::map<Key, std::pair<std::vector<Member>, std::vector<int>>> parts;
  for (const auto& [member, group] : placed) {
    const auto device = member.work.device();
    auto& [members, group_of] = parts[{static_cast<int>(device.type()), device.index(),
                                       kernels_for(member.work, forced) != nullptr}];
    members.push_back(member);
    group_of.push_back(group);
  }
  std::vector<TensorTable> tables;
  for (auto& [key, part] : parts) {
    auto& [members, group_of] = part;
    const kernels::CpuKernels* kernels = kernels_for(members.front().work, forced);
    tables.emplace_back(kernels, rule, std::move(members), group_of, groups);
  }
  return tables;
}

}  // namespace

template <typename Do>
void Stepper::each(const Do& act) {
  for (auto& table : tables_) act(table);
  if (!split_) return;
  for (auto& table : wide_tables_) act(table);
}

void Stepper::build(const std::vector<Placed>& members, const std::vector<kernels::Group>& groups) {
  placed_ = members;
  groups_ = groups;
  tables_ = tables_of(rule_, options_.path, members, groups);
  wide_tables_ =
      split_ ? tables_of(rule_, options_.path, members, groups) : std::vector<TensorTable>{};
  changed_ = true;
}

bool Stepper::adjust(const std::vector<kernels::Group>& groups) {
  for (const auto& table : tables_)
    if (!table.fits(groups)) return false;
  const auto take = [&](TensorTable& table) {
    std::copy(groups.begin(), groups.end(), table.plan().groups().begin());
  };
  for (auto& table : tables_) take(table);
  for (auto& table : wide_tables_) take(table);
  return true;
}

void Stepper::refresh() {
  for (auto& table : tables_) changed_ |= table.refresh(split_ ? Reads::k16Bit : Reads::kAll);
  if (!split_) return;
  for (auto& table : wide_tables_) changed_ |= table.refresh(Reads::kWide);
}

bool Stepper::has_gradients() const {
  return std::any_of(tables_.begin(), tables_.end(),
                     [](const auto& table) { return table.has_16_bit() || table.has_wide(); });
}

void Stepper::set_scale(const at::Tensor& scale) { scale_ = scale.is_cpu() ? scale : scale.cpu(); }

void Stepper::unscale(const at::Tensor& scale) {
  set_scale(scale);
  const auto any = [&](auto has) { return std::any_of(tables_.begin(), tables_.end(), has); };
  if (!any([](const auto& table) { return table.has_wide(); })) return;
  split_ = any([](const auto& table) { return table.has_16_bit(); });
  if (split_ && wide_tables_.empty())
    wide_tables_ = tables_of(rule_, options_.path, placed_, groups_);
  for (auto& table : tables_) table.unscale_wide(inverse_scale());
  wide_unscaled_ = true;
  refresh();
}

/// Writes what is recorded into .grad, as fp32, for what cannot be recorded on top of it.
void Stepper::settle() {
  if (max_norm_ == kernels::kNoLimit && !factors_) return;
  std::vector<std::pair<at::Tensor, at::Tensor>> settled;
  each([&](TensorTable& table) {
    for (Member& member : table.members())
      if (table.entry_of(member).gradient)
        settled.emplace_back(member.parameter, unscaled(member.parameter));
  });
  const at::Tensor scale = scale_;
  forget_records();
  scale_ = scale;
  wide_unscaled_ = true;
  for (auto& [parameter, gradient] : settled) parameter.mutable_grad() = gradient;
  refresh();
}

bool Stepper::clip_norm(float max_norm) {
  if (max_norm_ != kernels::kNoLimit || factors_) return false;
  max_norm_ = max_norm;
  measure();
  set_inputs();
  join();
  return true;
}

std::pair<TensorTable*, Member*> Stepper::reader_of(const at::Tensor& parameter) {
  std::pair<TensorTable*, Member*> found{};
  each([&](TensorTable& table) {
    if (Member* member = table.reader_of(parameter)) found = {&table, member};
  });
  return found;
}

void Stepper::multiply(const std::vector<at::Tensor>& parameters, const at::Tensor& factor) {
  const at::Tensor here = factor.to(at::kCPU, at::kFloat).contiguous();
  for (const auto& parameter : parameters) {
    Member* member = reader_of(parameter).second;
    if (!member) continue;
    member->factor = here;
    factors_ = true;
  }
}

void Stepper::clip_value(const std::vector<at::Tensor>& parameters, float limit) {
  for (const auto& parameter : parameters) {
    const auto [table, member] = reader_of(parameter);
    if (!member) continue;
    float& now = table->entry_of(*member).limit;
    now = std::min(now, limit);
    factors_ = true;
  }
}

at::Tensor Stepper::unscaled(const at::Tensor& parameter) {
  const auto [table, member] = reader_of(parameter);
  if (!member) return {};
  const at::NoGradGuard no_grad;
  const bool wide = !is_16_bit(member->gradient.scalar_type());
  at::Tensor gradient =
      member->gradient.to(member->work.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  if (!(wide && wide_unscaled_)) gradient.mul_(inverse_scale());
  if (max_norm_ != kernels::kNoLimit) gradient.mul_(joint_.clip_factor);
  if (member->factor.defined()) gradient.mul_(member->factor.item<float>());
  const float limit = table->entry_of(*member).limit;
  return limit == kernels::kNoLimit ? gradient : gradient.clamp_(-limit, limit);
}

bool Stepper::checks() const {
  return options_.skip_nonfinite || scale_.defined() || max_norm_ != kernels::kNoLimit;
}

void Stepper::set_inputs() {
  const auto set = [this](TensorTable& table, bool unscaled) {
    kernels::StepInputs inputs;
    if (scale_.defined() && !unscaled) inputs.scale = scale_.const_data_ptr<float>();
    if (found_inf_.defined()) inputs.found_inf = found_inf_.const_data_ptr<float>();
    inputs.max_norm = max_norm_;
    inputs.skip_nonfinite = options_.skip_nonfinite || scale_.defined() || found_inf_.defined();
    table.plan().inputs() = inputs;
  };
  for (auto& table : tables_) set(table, wide_unscaled_ && !split_);
  for (auto& table : wide_tables_) set(table, true);
}

void Stepper::measure() {
  if (measured_ && !changed_) return;
  set_inputs();
  each([](TensorTable& table) { table.measure(); });
  measured_ = true;
  changed_ = false;
  join();
}

/// Norm, clip factor and found_inf over all tables, and back into each of them.
void Stepper::join() {
  double squares = 0;
  float greatest = 0;
  each([&](TensorTable& table) {
    const kernels::StepState& state = table.plan().state();
    const double inverse = state.inverse_scale;
    squares += state.sum_of_squares * inverse * inverse;
    // A scale under 1 must not turn a finite gradient into one that is not.
    const float magnitude = state.found_inf != 0 ? std::numeric_limits<float>::infinity()
                                                 : std::min(state.greatest * state.inverse_scale,
                                                            std::numeric_limits<float>::max());
    greatest = std::max(greatest, magnitude);
  });
  const auto bits = std::bit_cast<std::uint32_t>(greatest);
  kernels::record_sums({.max_norm = max_norm_}, squares, bits, joint_);
  each([&](TensorTable& table) {
    table.plan().state().found_inf = joint_.found_inf;
    table.plan().state().clip_factor = joint_.clip_factor;
  });
}

void Stepper::step() {
  if (checks()) {
    measure();
  } else {
    joint_ = {};
    joint_.gradient_norm = std::nanf("");
  }
  set_inputs();
  bytes_ = 0;
  double elements = 0;
  each([&](TensorTable& table) {
    kernels::StepState& state = table.plan().state();
    if (!checks()) state = {};
    state.taken = taken;
    table.update();
    joint_.skipped = state.skipped;
    const kernels::Traffic traffic = kernels::traffic_of(table.plan().table());
    bytes_ += static_cast<double>(checks() ? traffic.total() : traffic.total() - traffic.measure);
    elements += static_cast<double>(traffic.elements);
  });
  if (joint_.skipped == 0) ++taken;
  bytes_ = elements > 0 ? bytes_ / elements : 0;
}

void Stepper::forget_records() {
  each([](TensorTable& table) { table.end_step(); });
  scale_.reset();
  found_inf_.reset();
  wide_unscaled_ = split_ = factors_ = measured_ = false;
  changed_ = true;
  max_norm_ = kernels::kNoLimit;
}

}  // namespace demi::optim
