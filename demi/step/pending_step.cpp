#include "demi/step/pending_step.h"

#include <torch/types.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <tuple>

#include "demi/core/error.h"
#include "demi/kernels/decision.h"
#include "demi/kernels/inverse_scale.h"
#include "demi/kernels/traffic.h"
#include "demi/step/backend.h"
#include "demi/step/member_source.h"
#include "demi/step/streams.h"
#include "demi/step/tensor_table.h"
#include "demi/tensor/dtype.h"
#include "demi/tensor/inverse_scale.h"

namespace demi::optim {
namespace {

constexpr int64_t kRecordFields = sizeof(kernels::StepRecord) / sizeof(float);
enum RecordField { kSkipped, kGradientNorm, kScale, kFoundInf, kGreatest };

float read(const at::Tensor& number) {
  return number.is_cpu() ? *number.const_data_ptr<float>() : number.item<float>();
}

[[noreturn]] void refuse_argument(const char* what, const std::string& seen, const char* accepted) {
  throw UsageError(
      {.where = "optim.PendingStep", .what = what, .seen = seen, .accepted = accepted});
}

void check_limit(const char* name, double limit) {
  if (!(limit >= 0))
    refuse_argument((std::string(name) + " is out of range").c_str(), std::to_string(limit),
                    "0 or more");
}

}  // namespace

PendingStep::PendingStep(kernels::UpdateRule rule, StepOptions options, const Backend& backend,
                         MemberSource& source)
    : rule_(rule), options_(options), backend_(backend), source_(source) {}

PendingStep::~PendingStep() = default;

// The tables

void PendingStep::prepare() {
  const Groups& groups = source_.groups();
  if (!source_.is_unchanged() || !update_groups(groups)) build(source_.members(groups), groups);
  refresh();
}

std::vector<TensorTable> PendingStep::make_tables(const std::vector<GroupedMember>& grouped,
                                                  const Groups& groups) {
  using Key = std::tuple<int, int, bool>;  // device type and index, kernels of ours
  std::map<Key, std::pair<std::vector<Member>, std::vector<int>>> parts;
  for (const auto& [member, group] : grouped) {
    const auto device = member.work.device();
    const at::Tensor like = at::empty({0}, member.work.options().dtype(arithmetic_of(member)));
    const bool ours = static_cast<bool>(backend_.kernels_for(like, options_.path));
    auto& [members, group_of] = parts[{static_cast<int>(device.type()), device.index(), ours}];
    members.push_back(member);
    group_of.push_back(group);
  }
  std::vector<TensorTable> tables;
  for (auto& [key, part] : parts) {
    auto& [members, group_of] = part;
    const at::Tensor work = members.front().work;
    const at::Tensor like = at::empty({0}, work.options().dtype(arithmetic_of(members.front())));
    const TableKernels kernels = backend_.kernels_for(like, options_.path);
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

/// None: the host decides.
std::optional<c10::Device> PendingStep::deciding_device() const {
  if (tables_.size() != 1 || !tables_.front().is_on_device()) return std::nullopt;
  return tables_.front().device();
}

void PendingStep::build(std::vector<GroupedMember> members, const Groups& groups) {
  if (measured_ && max_norm_ != kernels::kNoLimit) freeze_clip();
  const auto before = deciding_device();
  std::vector<TensorTable> tables = make_tables(members, groups);
  std::swap(tables, tables_);
  if (holds_) move_records(tables);
  const auto now = deciding_device();
  if (now != before) record_.reset();  // lies on the device before
  if (before && now != before) taken_ = read_state(tables.front().state()).taken;
  if (now && now != before) set_taken(taken_);
  changed_ = true;
}

int64_t PendingStep::taken() const {
  return deciding_device() ? read_state(tables_.front().state()).taken : taken_;
}

void PendingStep::set_taken(int64_t taken) {
  taken_ = taken;
  kernels::StepState state;
  state.taken = taken;
  for (auto& [device, tensor] : states_) write_state(tensor, state);
}

bool PendingStep::update_groups(const Groups& groups) {
  for (const auto& table : tables_)
    if (!table.matches(groups)) return false;
  for (auto& table : tables_) table.update_groups(groups);
  return true;
}

bool PendingStep::refresh_tables() {
  bool changed = false;
  for (auto& table : tables_) changed |= table.refresh(wide_unscaled_);
  return changed;
}

void PendingStep::refresh() {
  bool changed = refresh_tables();
  const bool carries_scale = wide_unscaled_ && scale_.defined() && !sealed_;
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
  if (narrow_written && carries_scale) warn_of_writes();
}

bool PendingStep::holds_all_unchanged() const {
  return std::all_of(tables_.begin(), tables_.end(),
                     [](const auto& table) { return table.holds_all_unchanged(); });
}

/// Keeps what was said of the step whatever its gradients are: skip_if(), take_nonfinite(), and a
/// scale that no gradient was divided by.
void PendingStep::forget_for_new_gradients() {
  const at::Tensor found_inf = found_inf_, scale = wide_unscaled_ ? at::Tensor() : scale_;
  const bool takes_nonfinite = takes_nonfinite_;
  forget_records();
  takes_nonfinite_ = takes_nonfinite;
  found_inf_ = found_inf;
  scale_ = scale;
}

void PendingStep::warn_of_writes() {
  if (warned_) return;
  warned_ = true;
  TORCH_WARN(
      "[optim.step] a 16-bit gradient was written to after unscale_(), or another tensor was put "
      "in "
      "its place: it still carries the loss scale (unscale_ records the factor, since 16 bits "
      "would "
      "underflow), so whatever compares it with a true magnitude is wrong, as "
      "torch::nn::utils::clip_grad_norm_ is, and an fp32 tensor that was made from it is stepped "
      "with the scale on. Use demi::optim::clip_grad_norm_ and clip_grad_value_, which know the "
      "scale; Optimizer::unscaled_grad() shows true gradients, and without "
      "StepOptions::low_precision_grads they stand in .grad.");
}

/// Where the host knows the norm.
void PendingStep::warn_of_clipping() {
  const double norm = static_cast<double>(joint_.gradient_norm) * scale();
  if (!clip_watch_.note(scale(), norm)) return;
  TORCH_WARN("[optim.step] the gradients with the loss scale of ", scale(), " on had a norm of ",
             norm,
             " in three steps in a row: it looks as if they were clipped before they were divided, "
             "as by torch::nn::utils::clip_grad_norm_ before scaler.unscale_(optimizer), so each "
             "update is too small by up to the scale. Call unscale_ first, then clip.");
}

/// Makes the recorded clip a factor of each gradient that it was measured on, before these are
/// measured anew: to the user, .grad holds what was clipped. An Inf or NaN that was found with the
/// norm stays found, since the factor comes from it.
void PendingStep::freeze_clip() {
  const at::Tensor factor = clip_factor();
  earlier_found_ = recorded(kFoundInf, joint_.found_inf);
  max_norm_ = kernels::kNoLimit;
  for (auto& table : tables_)
    for (Member& member : table.members())
      if (member.held.gradient.defined()) {
        const at::Tensor here = factor.to(member.work.device(), at::kFloat).contiguous();
        member.factor = member.factor.defined() ? member.factor * here : here;
      }
  factors_ = true;
}

/// What is recorded for a parameter stays with it if the tables are built anew.
void PendingStep::move_records(std::vector<TensorTable>& from) {
  for (auto& table : from) {
    for (Member& old : table.members()) {
      if (!old.held.gradient.defined()) continue;
      for (auto& now : tables_) {
        Member* member = now.member_of(old.parameter);
        if (!member) continue;
        member->held = old.held;
        if (old.factor.defined()) member->factor = old.factor.to(member->work.device());
        now.entry_of(*member).limit = table.entry_of(old).limit;
      }
    }
  }
}

void PendingStep::join_earlier_found() {
  if (!earlier_found_.defined() || !skips_nonfinite()) return;
  const at::Tensor now = found_inf_.defined() ? found_inf_ : recorded(kFoundInf, joint_.found_inf);
  found_inf_ = at::maximum(earlier_found_, now.to(earlier_found_.device()));
}

void PendingStep::keep_gradients() {
  for (auto& table : tables_) table.keep_gradients();
  holds_ = true;
}

bool PendingStep::has_gradients() const { return source_.has_gradients(); }

bool PendingStep::any_reads() const {
  return std::any_of(tables_.begin(), tables_.end(),
                     [](const auto& table) { return table.has_gradients(); });
}

float PendingStep::scale() const { return scale_.defined() ? read(scale_) : 1.0F; }

// The records

/// A device's scale is not read here: the step is skipped there (kernels/decision.h).
void PendingStep::check_scale(const at::Tensor& scale) const {
  if (!scale.defined()) return;
  if (scale.numel() != 1 || scale.scalar_type() != at::kFloat)
    refuse_argument("a scale is not one number", scale.toString() + " " + c10::str(scale.sizes()),
                    "fp32, one element");
  if (backend_.is_asynchronous(scale.device())) return;
  const float value = *scale.const_data_ptr<float>();
  if (!kernels::is_usable(kernels::inverse_of_scale(value)))
    refuse_argument("a scale is out of range", std::to_string(value), "positive, finite, not tiny");
}

/// Returns whether that is another scale.
bool PendingStep::record_scale(const at::Tensor& scale, bool wide_unscaled) {
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

void PendingStep::set_scale(const at::Tensor& scale, bool wide_unscaled) {
  const at::NoGradGuard no_grad;
  check_scale(scale);
  if (holds_) prepare();  // forgets what was recorded for other gradients
  record_scale(scale, wide_unscaled);
}

void PendingStep::unscale_(const at::Tensor& scale) {
  const at::NoGradGuard no_grad;
  check_scale(scale);
  prepare();
  record_scale(scale, /*wide_unscaled=*/true);
  changed_ = true;
  for (auto& table : tables_)
    if (table.has_wide()) table.unscale_wide(scale);
  refresh_tables();
  keep_gradients();  // as they are now
  for (auto& table : tables_) table.watch_narrow();
}

void PendingStep::end_inspection() {
  if (!holds_) return;
  if (holds_all_unchanged())
    sealed_ = true;
  else
    forget_records();
}

void PendingStep::skip_if(const at::Tensor& found_inf) {
  found_inf_ = found_inf.defined() ? found_inf.to(at::kFloat) : found_inf;
}

void PendingStep::take_nonfinite() { takes_nonfinite_ = true; }

void PendingStep::apply_recorded_factors() {
  const at::NoGradGuard no_grad;
  prepare();
  if (max_norm_ != kernels::kNoLimit || factors_) write_gradients();
}

void PendingStep::write_16_bit_gradients_as_fp32() {
  if (!holds_) return;
  const at::NoGradGuard no_grad;
  prepare();
  const bool recorded =
      max_norm_ != kernels::kNoLimit || factors_ || (wide_unscaled_ && scale_.defined());
  if (recorded) write_gradients();
}

void PendingStep::write_gradients() {
  std::vector<std::pair<at::Tensor, at::Tensor>> applied;
  for (auto& table : tables_)
    for (Member& member : table.members())
      if (table.entry_of(member).gradient)
        applied.emplace_back(member.parameter, used_gradient(member.parameter));
  const at::Tensor scale = scale_;
  forget_records();
  scale_ = scale;
  wide_unscaled_ = true;
  for (auto& [parameter, gradient] : applied) parameter.mutable_grad() = gradient;
  refresh_tables();
  keep_gradients();
}

bool PendingStep::clip_norm(double max_norm) {
  check_limit("max_norm", max_norm);
  const at::NoGradGuard no_grad;
  prepare();
  if (max_norm_ != kernels::kNoLimit || factors_) return false;
  max_norm_ = static_cast<float>(max_norm);
  measure_if_changed();
  return true;
}

std::pair<TensorTable*, Member*> PendingStep::reader_of(const at::Tensor& parameter) {
  for (auto& table : tables_)
    if (Member* member = table.reader_of(parameter)) return {&table, member};
  return {};
}

void PendingStep::multiply(const std::vector<at::Tensor>& parameters, const at::Tensor& factor) {
  const at::NoGradGuard no_grad;
  prepare();
  for (const auto& parameter : parameters) {
    Member* member = reader_of(parameter).second;
    if (!member) continue;
    member->factor = factor.to(member->work.device(), at::kFloat).contiguous();
    factors_ = true;
  }
  keep_gradients();
}

void PendingStep::clip_value(const std::vector<at::Tensor>& parameters, double limit) {
  check_limit("limit", limit);
  const at::NoGradGuard no_grad;
  prepare();
  for (const auto& parameter : parameters) {
    const auto [table, member] = reader_of(parameter);
    if (!member) continue;
    float& now = table->entry_of(*member).limit;
    now = std::min(now, static_cast<float>(limit));
    factors_ = true;
  }
  keep_gradients();
}

at::Tensor PendingStep::unscaled_grad(const at::Tensor& parameter) {
  const at::NoGradGuard no_grad;
  prepare();
  if (Member* member = reader_of(parameter).second) member->shown = true;
  return used_gradient(parameter);
}

at::Tensor PendingStep::used_gradient(const at::Tensor& parameter) {
  const auto [table, member] = reader_of(parameter);
  if (!member) return {};
  const auto device = member->work.device();
  const bool wide = !tensor::is_16_bit(member->gradient->scalar_type());
  at::Tensor gradient =
      member->gradient->to(arithmetic_of(*member), /*non_blocking=*/false, /*copy=*/true);
  if (scale_.defined() && !(wide && wide_unscaled_))
    gradient.mul_(tensor::inverse_of_scale(scale_).to(device));
  if (max_norm_ != kernels::kNoLimit) gradient.mul_(clip_factor().to(device));
  if (member->factor.defined()) gradient.mul_(member->factor);
  const float limit = table->entry_of(*member).limit;
  return limit == kernels::kNoLimit ? gradient : gradient.clamp_(-limit, limit);
}

/// kernels::clip_factor_of the norm, on the norm's device.
at::Tensor PendingStep::clip_factor() const {
  const at::Tensor norm = recorded(kGradientNorm, joint_.gradient_norm) + 1e-6;
  return (at::full_like(norm, max_norm_) / norm).clamp_max(1);
}

// The step

/// Whether this step reads the gradients before it updates.
bool PendingStep::checks() const {
  return options_.skip_nonfinite || scale_.defined() || max_norm_ != kernels::kNoLimit;
}

bool PendingStep::skips_nonfinite() const {
  if (takes_nonfinite_) return false;
  return options_.skip_nonfinite || scale_.defined() || found_inf_.defined();
}

void PendingStep::set_inputs() {
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

void PendingStep::measure() {
  const at::NoGradGuard no_grad;
  prepare();
  measure_if_changed();
}

void PendingStep::measure_if_changed() {
  if (measured_ && !changed_) return;
  measure_now();
  keep_gradients();
}

void PendingStep::measure_now() {
  if (measured_) record_.reset();  // tensors that were handed out keep their numbers
  set_inputs();
  for (auto& table : tables_) table.measure();
  measured_ = true;
  changed_ = false;
  if (!deciding_device()) join();
}

/// Norm and found_inf over all tables, and back into each of them.
void PendingStep::join() {
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

/// After join(): all tables decide alike.
void PendingStep::update_joined() {
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

void PendingStep::step() {
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

/// A number of measure(), on the device that decides.
at::Tensor PendingStep::recorded(int field, float joint) const {
  return deciding_device() ? record_.select(0, field) : at::scalar_tensor(joint, at::kFloat);
}

at::Tensor PendingStep::found_inf() {
  measure();
  return recorded(kFoundInf, joint_.found_inf);
}

at::Tensor PendingStep::grad_norm() {
  measure();
  return recorded(kGradientNorm, joint_.gradient_norm);
}

at::Tensor PendingStep::greatest() {
  measure();
  return recorded(kGreatest, joint_.greatest);
}

at::Tensor PendingStep::found_inf_under(const at::Tensor& scale, bool wide_unscaled) {
  const at::NoGradGuard no_grad;
  prepare();
  if (record_scale(scale, wide_unscaled)) refresh();
  measure_if_changed();
  return recorded(kFoundInf, joint_.found_inf);
}

StepResult PendingStep::run(const torch::optim::Optimizer* optimizer, const at::Tensor& loss) {
  const at::NoGradGuard no_grad;
  prepare();
  if (any_reads()) step();
  if (any_reads() && !deciding_device() && scale_.defined()) warn_of_clipping();
  const StepResult done = result(optimizer, loss);
  forget_records();
  return done;
}

StepResult PendingStep::result(const torch::optim::Optimizer* optimizer,
                               const at::Tensor& loss) const {
  const auto device = deciding_device();
  if (device && any_reads()) return {optimizer, record_, loss, ordered_stream(*device)};
  StepResult::Numbers numbers{.grad_norm = std::nanf(""), .scale = scale()};
  if (any_reads()) {
    numbers.found_inf = joint_.skipped;
    numbers.grad_norm = joint_.gradient_norm;
  }
  return {optimizer, numbers, loss};
}

void PendingStep::forget_records() {
  for (auto& table : tables_) table.end_step();
  scale_.reset();
  found_inf_.reset();
  earlier_found_.reset();
  record_.reset();
  wide_unscaled_ = factors_ = measured_ = holds_ = sealed_ = takes_nonfinite_ = false;
  changed_ = true;
  max_norm_ = kernels::kNoLimit;
}

}  // namespace demi::optim
