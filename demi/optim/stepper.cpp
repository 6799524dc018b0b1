#include "demi/optim/stepper.h"

#include <torch/types.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <tuple>

#include "demi/kernels/decision.h"
#include "demi/kernels/traffic.h"

namespace demi::optim {
namespace {

constexpr int64_t kRecordFields = sizeof(kernels::StepRecord) / sizeof(float);
enum RecordField { kSkipped, kGradientNorm, kScale, kFoundInf, kGreatest };

/// fp32 of 1 / scale, divided in fp64.
at::Tensor inverse_of(const at::Tensor& scale) {
  return scale.to(at::kDouble).reciprocal().to(at::kFloat);
}

float read(const at::Tensor& number) {
  return number.is_cpu() ? *number.const_data_ptr<float>() : number.item<float>();
}

}  // namespace

std::vector<TensorTable> Stepper::make_tables(const std::vector<Placed>& placed,
                                              const Groups& groups) {
  using Key = std::tuple<int, int, bool>;  // device type and index, kernels of ours
  std::map<Key, std::pair<std::vector<Member>, std::vector<int>>> parts;
  for (const auto& [member, group] : placed) {
    const auto device = member.work.device();
    const bool ours = static_cast<bool>(kernels_for(member.work, options_.path));
    auto& [members, group_of] = parts[{static_cast<int>(device.type()), device.index(), ours}];
    members.push_back(member);
    group_of.push_back(group);
  }
  std::vector<TensorTable> tables;
  for (auto& [key, part] : parts) {
    auto& [members, group_of] = part;
    const at::Tensor work = members.front().work;
    const TableKernels kernels = kernels_for(work, options_.path);
    at::Tensor state;
    if (kernels.device) {
      state = states_[{std::get<0>(key), std::get<1>(key)}];
      if (!state.defined()) state = make_state(work.device());
      states_[{std::get<0>(key), std::get<1>(key)}] = state;
    }
    tables.emplace_back(kernels, rule_, std::move(members), group_of, groups, state);
  }
  return tables;
}

/// Where all is decided; none: on the host.
std::optional<c10::Device> Stepper::deciding_device() const {
  if (tables_.size() != 1 || !tables_.front().is_on_device()) return std::nullopt;
  return tables_.front().device();
}

void Stepper::build(const std::vector<Placed>& members, const Groups& groups) {
  if (measured_ && max_norm_ != kernels::kNoLimit) freeze_clip();
  const auto before = deciding_device();
  std::vector<TensorTable> tables = make_tables(members, groups);
  std::swap(tables, tables_);
  if (holds_) bring_records(tables);
  const auto now = deciding_device();
  if (now != before) record_.reset();  // lies on the device before
  if (before && now != before) taken_ = read_state(tables.front().state()).taken;
  if (now && now != before) set_taken(taken_);
  changed_ = true;
}

int64_t Stepper::taken() const {
  return deciding_device() ? read_state(tables_.front().state()).taken : taken_;
}

void Stepper::set_taken(int64_t taken) {
  taken_ = taken;
  kernels::StepState state;
  state.taken = taken;
  for (auto& [device, tensor] : states_) write_state(tensor, state);
}

bool Stepper::adjust(const Groups& groups) {
  for (const auto& table : tables_)
    if (!table.fits(groups)) return false;
  for (auto& table : tables_) table.take(groups);
  return true;
}

bool Stepper::refresh_tables() {
  bool changed = false;
  for (auto& table : tables_) changed |= table.refresh(wide_unscaled_);
  return changed;
}

void Stepper::refresh() {
  bool changed = refresh_tables();
  int64_t kept = 0, lost = 0;
  bool narrow_written = false;
  for (const auto& table : tables_) {
    kept += table.kept();
    lost += table.lost();
    narrow_written |= table.narrow_written();
  }
  const bool untouched = !sealed_ || (lost == 0 && holds_all_unchanged());
  if ((lost > 0 && kept == 0) || !untouched) {
    forget_for_new_gradients();
    changed = refresh_tables();
  } else if (changed && measured_ && max_norm_ != kernels::kNoLimit) {
    freeze_clip();
  }
  changed_ |= changed;
  if (narrow_written && wide_unscaled_ && scale_.defined()) warn_of_writes();
}

bool Stepper::holds_all_unchanged() const {
  return std::all_of(tables_.begin(), tables_.end(),
                     [](const auto& table) { return table.holds_all_unchanged(); });
}

/// Not what is said of the step, whatever its gradients: what others have found, and a scale that
/// none of them was divided by.
void Stepper::forget_for_new_gradients() {
  const at::Tensor found_inf = found_inf_, scale = wide_unscaled_ ? at::Tensor() : scale_;
  forget_records();
  found_inf_ = found_inf;
  scale_ = scale;
}

void Stepper::warn_of_writes() {
  if (warned_) return;
  warned_ = true;
  TORCH_WARN(
      "[optim.step] a 16-bit gradient was written to after unscale_(): it still carries the "
      "loss scale (unscale_ records the factor, since 16 bits would underflow), so whatever "
      "compares it with a true magnitude is wrong, as torch::nn::utils::clip_grad_norm_ is. "
      "Use demi::optim::clip_grad_norm_ and clip_grad_value_, which know the scale; "
      "Optimizer::unscaled_grad() shows true gradients, and "
      "StepOptions::low_precision_grads = false keeps them in fp32.");
}

void Stepper::end_look() {
  if (!holds_) return;
  if (holds_all_unchanged())
    sealed_ = true;
  else
    forget_records();
}

/// The clip that is recorded becomes factors of the gradients that it was measured on, before they
/// are measured anew: what is in .grad by then is, to the user, what was clipped. An Inf or NaN
/// that was found with the norm stays found, since the factor comes from it.
void Stepper::freeze_clip() {
  const at::Tensor factor = clip_factor();
  earlier_found_ = found_inf();
  max_norm_ = kernels::kNoLimit;
  for (auto& table : tables_)
    for (Member& member : table.members())
      if (member.held.defined()) {
        const at::Tensor here = factor.to(member.work.device(), at::kFloat).contiguous();
        member.factor = member.factor.defined() ? member.factor * here : here;
      }
  factors_ = true;
}

/// What is recorded for parameters stays with them where the tables are built anew.
void Stepper::bring_records(std::vector<TensorTable>& from) {
  for (auto& table : from) {
    for (Member& old : table.members()) {
      if (!old.held.defined()) continue;
      for (auto& now : tables_) {
        Member* member = now.member_of(old.parameter);
        if (!member) continue;
        member->held = old.held;
        member->held_data = old.held_data;
        member->held_version = old.held_version;
        member->held_arrivals = old.held_arrivals;
        if (old.factor.defined()) member->factor = old.factor.to(member->work.device());
        now.entry_of(*member).limit = table.entry_of(old).limit;
      }
    }
  }
}

void Stepper::join_earlier_found() {
  if (!earlier_found_.defined() || !skips_nonfinite()) return;
  const at::Tensor now = found_inf_.defined() ? found_inf_ : found_inf();
  found_inf_ = at::maximum(earlier_found_, now.to(earlier_found_.device()));
}

void Stepper::hold() {
  for (auto& table : tables_) table.hold();
  holds_ = true;
}

bool Stepper::has_gradients() const {
  return std::any_of(tables_.begin(), tables_.end(),
                     [](const auto& table) { return table.has_gradients(); });
}

float Stepper::scale() const { return scale_.defined() ? read(scale_) : 1.0F; }

bool Stepper::set_scale(const at::Tensor& scale, bool wide_unscaled) {
  const bool same = scale.is_same(scale_) && wide_unscaled == wide_unscaled_;
  if (!same && measured_ && max_norm_ != kernels::kNoLimit) freeze_clip();
  scale_ = scale;
  wide_unscaled_ = wide_unscaled;
  sealed_ = false;
  if (same) return false;
  changed_ = true;  // norm and greatest are of unscaled gradients
  if (holds_) refresh_tables();
  return true;
}

void Stepper::unscale(const at::Tensor& scale) {
  set_scale(scale, /*wide_unscaled=*/true);
  changed_ = true;
  for (auto& table : tables_)
    if (table.has_wide()) table.unscale_wide(scale);
  refresh_tables();
  hold();  // as they are now
  for (auto& table : tables_) table.watch_narrow();
}

/// Writes what is recorded into .grad, as fp32, for what cannot be recorded on top of it.
void Stepper::settle() {
  if (max_norm_ == kernels::kNoLimit && !factors_) return;
  std::vector<std::pair<at::Tensor, at::Tensor>> settled;
  for (auto& table : tables_)
    for (Member& member : table.members())
      if (table.entry_of(member).gradient)
        settled.emplace_back(member.parameter, unscaled(member.parameter));
  const at::Tensor scale = scale_;
  forget_records();
  scale_ = scale;
  wide_unscaled_ = true;
  for (auto& [parameter, gradient] : settled) parameter.mutable_grad() = gradient;
  refresh_tables();
  hold();
}

bool Stepper::clip_norm(float max_norm) {
  if (max_norm_ != kernels::kNoLimit || factors_) return false;
  max_norm_ = max_norm;
  measure();
  return true;
}

std::pair<TensorTable*, Member*> Stepper::reader_of(const at::Tensor& parameter) {
  for (auto& table : tables_)
    if (Member* member = table.reader_of(parameter)) return {&table, member};
  return {};
}

void Stepper::multiply(const std::vector<at::Tensor>& parameters, const at::Tensor& factor) {
  for (const auto& parameter : parameters) {
    Member* member = reader_of(parameter).second;
    if (!member) continue;
    member->factor = factor.to(member->work.device(), at::kFloat).contiguous();
    factors_ = true;
  }
  hold();
}

void Stepper::clip_value(const std::vector<at::Tensor>& parameters, float limit) {
  for (const auto& parameter : parameters) {
    const auto [table, member] = reader_of(parameter);
    if (!member) continue;
    float& now = table->entry_of(*member).limit;
    now = std::min(now, limit);
    factors_ = true;
  }
  hold();
}

at::Tensor Stepper::unscaled(const at::Tensor& parameter) {
  const auto [table, member] = reader_of(parameter);
  if (!member) return {};
  const at::NoGradGuard no_grad;
  const auto device = member->work.device();
  const bool wide = !is_16_bit(member->gradient->scalar_type());
  at::Tensor gradient =
      member->gradient->to(member->work.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  if (scale_.defined() && !(wide && wide_unscaled_)) gradient.mul_(inverse_of(scale_).to(device));
  if (max_norm_ != kernels::kNoLimit) gradient.mul_(clip_factor().to(device));
  if (member->factor.defined()) gradient.mul_(member->factor);
  const float limit = table->entry_of(*member).limit;
  return limit == kernels::kNoLimit ? gradient : gradient.clamp_(-limit, limit);
}

/// kernels::clip_factor_of the norm, where that is.
at::Tensor Stepper::clip_factor() const {
  const at::Tensor norm = grad_norm() + 1e-6;
  return (at::full_like(norm, max_norm_) / norm).clamp_max(1);
}

bool Stepper::checks() const {
  return options_.skip_nonfinite || scale_.defined() || max_norm_ != kernels::kNoLimit;
}

bool Stepper::skips_nonfinite() const {
  return options_.skip_nonfinite || scale_.defined() || found_inf_.defined();
}

void Stepper::set_inputs() {
  kernels::StepInputs inputs;
  inputs.max_norm = max_norm_;
  inputs.skip_nonfinite = skips_nonfinite();
  inputs.measured = checks();
  if (const auto device = deciding_device()) {
    if (!record_.defined())
      record_ = at::empty({kRecordFields}, at::TensorOptions(*device).dtype(at::kFloat));
    inputs.record = static_cast<kernels::StepRecord*>(record_.mutable_data_ptr());
  }
  for (auto& table : tables_) table.set_inputs(scale_, found_inf_, inputs);
}

void Stepper::measure() {
  if (measured_ && !changed_) return;
  measure_now();
  hold();
}

void Stepper::measure_now() {
  if (measured_) record_.reset();  // what was handed out keeps what it shows
  set_inputs();
  for (auto& table : tables_) table.measure();
  measured_ = true;
  changed_ = false;
  if (!deciding_device()) join();
}

/// Norm and found_inf over all tables, and back into each of them.
void Stepper::join() {
  double squares = 0;
  float greatest = 0;
  for (auto& table : tables_) {
    if (table.is_on_device()) table.plan().state() = read_state(table.state());
    const kernels::StepState& state = table.plan().state();
    const double inverse = state.inverse_scale;
    squares += state.sum_of_squares * inverse * inverse;
    // A scale under 1 must not turn a finite gradient into one that is not.
    const float magnitude = state.found_inf != 0 ? std::numeric_limits<float>::infinity()
                                                 : std::min(state.greatest * state.inverse_scale,
                                                            std::numeric_limits<float>::max());
    greatest = std::max(greatest, magnitude);
  }
  kernels::record_sums({}, squares, std::bit_cast<std::uint32_t>(greatest), joint_);
  for (auto& table : tables_) {
    table.plan().state().found_inf = joint_.found_inf;
    table.plan().state().gradient_norm = joint_.gradient_norm;
  }
}

/// The host has joined what the tables found: all of them decide alike.
void Stepper::update_joined() {
  for (auto& table : tables_) {
    kernels::StepState& state = table.plan().state();
    state.taken = taken_;
    if (table.is_on_device()) write_state(table.state(), state);
    table.update();
  }
  const float found = found_inf_.defined() ? read(found_inf_) : joint_.found_inf;
  const bool skipped = (skips_nonfinite() && found != 0) || !kernels::is_usable(1 / scale());
  joint_.skipped = skipped ? 1 : 0;
  if (!checks()) joint_.gradient_norm = std::nanf("");
  if (joint_.skipped == 0) ++taken_;
}

void Stepper::step() {
  if (checks() && (!measured_ || changed_)) measure_now();
  join_earlier_found();
  set_inputs();
  if (deciding_device()) {
    tables_.front().update();
  } else {
    update_joined();
  }
  bytes_ = 0;
  double elements = 0;
  for (auto& table : tables_) {
    const kernels::Traffic traffic = kernels::traffic_of(table.plan().table());
    bytes_ += static_cast<double>(checks() ? traffic.total() : traffic.total() - traffic.measure);
    elements += static_cast<double>(traffic.elements);
  }
  bytes_ = elements > 0 ? bytes_ / elements : 0;
}

/// A number of measure(), from wherever it is.
at::Tensor Stepper::recorded(int field, float joint) const {
  return deciding_device() ? record_.select(0, field) : at::scalar_tensor(joint, at::kFloat);
}
at::Tensor Stepper::found_inf() const { return recorded(kFoundInf, joint_.found_inf); }
at::Tensor Stepper::grad_norm() const { return recorded(kGradientNorm, joint_.gradient_norm); }
at::Tensor Stepper::greatest() const { return recorded(kGreatest, joint_.greatest); }

StepResult Stepper::result(const Optimizer* optimizer, const at::Tensor& loss) const {
  const auto device = deciding_device();
  if (device && has_gradients()) return {optimizer, record_, loss, ordered_stream(*device)};
  StepResult::Numbers numbers{.grad_norm = std::nanf(""), .scale = scale()};
  if (has_gradients()) {
    numbers.found_inf = joint_.skipped;
    numbers.grad_norm = joint_.gradient_norm;
  }
  return {optimizer, numbers, loss};
}

void Stepper::forget_records() {
  for (auto& table : tables_) table.end_step();
  scale_.reset();
  found_inf_.reset();
  earlier_found_.reset();
  record_.reset();
  wide_unscaled_ = factors_ = measured_ = holds_ = sealed_ = false;
  changed_ = true;
  max_norm_ = kernels::kNoLimit;
}

}  // namespace demi::optim
