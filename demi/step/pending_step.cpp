#include "demi/step/pending_step.h"

#include <torch/types.h>

#include <algorithm>
#include <bit>
#include <string>
#include <variant>

#include "demi/core/error.h"
#include "demi/graph/recording_scope.h"
#include "demi/kernels/decision.h"
#include "demi/kernels/inverse_scale.h"
#include "demi/kernels/traffic.h"
#include "demi/step/backend.h"
#include "demi/step/make_tables.h"
#include "demi/step/member_source.h"
#include "demi/step/streams.h"
#include "demi/step/tensor_table.h"
#include "demi/tensor/dtype.h"
#include "demi/tensor/inverse_scale.h"

namespace demi::optim {
namespace {

constexpr int64_t kRecordFields = sizeof(kernels::StepRecord) / sizeof(float);
enum RecordField { kSkipped, kGradientNorm, kScale, kAboveNorm, kFoundInf, kGreatest };

float read(const at::Tensor& number) {
  return number.is_cpu() ? *number.const_data_ptr<float>() : number.item<float>();
}

constexpr auto kWhere = "optim.PendingStep";

void check_limit(const char* name, double limit) {
  if (!(limit >= 0))  // each step asks
    refuse({.where = kWhere,
            .what = std::string(name) + " is out of range",
            .seen = std::to_string(limit),
            .accepted = "0 or more"});
}

}  // namespace

PendingStep::PendingStep(StepOptions options, const Backend& backend, MemberSource& source)
    : options_(options), backend_(backend), source_(source) {
  if (options.skip_norm_above) guard_.emplace(*options.skip_norm_above);
}

PendingStep::~PendingStep() = default;

// The tables

void PendingStep::prepare() {
  const Groups& groups = source_.groups();
  if (!source_.is_unchanged() || !update_groups(groups)) build(source_.members(groups), groups);
  const bool carries_scale = records_.scaled == Scaled::kNarrow && records_.scope != Scope::kSealed;
  if (read_gradients() && carries_scale) warnings_.of_write();
}

/// None: the host decides.
std::optional<c10::Device> PendingStep::deciding_device() const {
  if (tables_.size() != 1 || !tables_.front().is_on_device()) return std::nullopt;
  return tables_.front().device();
}

void PendingStep::build(std::vector<GroupedMember> members, const Groups& groups) {
  const auto before = deciding_device();
  std::vector<TensorTable> tables = make_tables(members, groups, backend_, options_.path, states_);
  std::vector<std::ptrdiff_t> places;  // before, by tensor
  for (auto& table : tables)
    for (const Member& member : table.members()) places.push_back(place_of(member.parameter));
  note(Reordered{places});  // a clip becomes a factor of gradients that the tables before hold
  seen_.resize(places.size());
  ++builds_;
  std::swap(tables, tables_);
  move_records(tables);
  const auto now = deciding_device();
  if (now != before) record_.reset();  // lies on the device before
  if (before && now != before) taken_ = read_state(tables.front().state()).taken;
  if (now && now != before) set_taken(taken_);
}

/// -1: it has none.
std::ptrdiff_t PendingStep::place_of(const at::Tensor& parameter) {
  for (auto& table : tables_)
    if (const Member* member = table.member_of(parameter))
      return static_cast<std::ptrdiff_t>(table.place_of(*member));
  return -1;
}

/// What is recorded for a parameter stays with it if the tables are built anew, and so does what is
/// known of the parameter itself: a master that the program has put there counts unless the
/// parameter was written to.
void PendingStep::move_records(std::vector<TensorTable>& from) {
  for (auto& table : from) {
    for (Member& old : table.members()) {
      for (auto& now : tables_) {
        Member* member = now.member_of(old.parameter);
        if (!member) continue;
        if (member->state == old.state) member->written = old.written;
        member->unscaled = old.unscaled;
        if (!old.held.gradient.defined()) continue;
        member->held = old.held;
        if (old.factor.defined()) member->factor = old.factor.to(member->work.device());
      }
    }
  }
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

/// Returns what TensorTable::read_gradients() does.
bool PendingStep::read_gradients() {
  const auto read = [&] {
    bool written = false;
    for (auto& table : tables_) written |= table.read_gradients(records_.tensors, seen_);
    return written;
  };
  const bool written = read(), held = records_.holds();
  note(Looked{seen_});
  if (held && !records_.holds()) read();  // the tables have let go of all
  return written;
}

/// The user sees what was clipped in .grad. An Inf or NaN that was found with the norm stays
/// found, since the factor comes from it.
void PendingStep::make_clip_a_factor(float max_norm) {
  const at::Tensor factor = clip_factor(max_norm);
  earlier_found_ = recorded(kFoundInf, joint_.found_inf);
  for (auto& table : tables_)
    for (Member& member : table.members())
      if (member.held.gradient.defined()) {
        const at::Tensor here = factor.to(member.work.device(), at::kFloat).contiguous();
        member.factor = member.factor.defined() ? member.factor * here : here;
      }
}

/// The tensors that the records speak of follow them.
void PendingStep::note(const Event& event) {
  const bool clipped = records_.clips(), held = records_.holds();
  const float max_norm = records_.max_norm;
  records_ = after(std::move(records_), event);
  if (clipped && !records_.clips() && records_.factors) make_clip_a_factor(max_norm);
  if (records_.scaled == Scaled::kNone) scale_.reset();
  if (!records_.flagged) found_inf_.reset();
  if (!records_.decided) by_norm_ = {};
  if (!records_.factors) earlier_found_.reset();
  if (records_.norm == Norm::kUnknown) record_.reset();
  if ((held && !records_.holds()) || std::holds_alternative<StepEnded>(event))
    for (auto& table : tables_) table.end_step();
}

void PendingStep::join_earlier_found() {
  if (!earlier_found_.defined() || !skips_nonfinite()) return;
  const at::Tensor now = found_inf_.defined() ? found_inf_ : recorded(kFoundInf, joint_.found_inf);
  found_inf_ = at::maximum(earlier_found_, now.to(earlier_found_.device()));
}

void PendingStep::keep_gradients() {
  for (auto& table : tables_) table.keep_gradients();
  note(Held{});
}

bool PendingStep::has_gradients() const { return source_.has_gradients(); }

float PendingStep::scale() const { return scale_.defined() ? read(scale_) : 1.0F; }

// The records

/// A device's scale is not read here: the step is skipped there (kernels/decision.h).
void PendingStep::check_scale(const at::Tensor& scale) const {
  if (!scale.defined()) return;
  if (scale.numel() != 1 || scale.scalar_type() != at::kFloat)
    refuse({.where = kWhere,
            .what = "a scale is not one number",
            .seen = scale.toString() + " " + c10::str(scale.sizes()),
            .accepted = "fp32, one element"});
  if (backend_.is_asynchronous(scale.device())) return;
  const float value = *scale.const_data_ptr<float>();
  if (!kernels::is_usable(kernels::inverse_of_scale(value)))
    refuse({.where = kWhere,
            .what = "a scale is out of range",
            .seen = std::to_string(value),
            .accepted = "positive, finite, not tiny"});
}

/// A limit is for gradients as they are when it is set: with the scale that is recorded later.
void PendingStep::record_scale(const at::Tensor& scale, bool wide_unscaled) {
  if (records_.scaled == Scaled::kNone && records_.any_limit()) write_gradients();
  const Scaled scaled = !scale.defined() ? Scaled::kNone
                        : wide_unscaled  ? Scaled::kNarrow
                                         : Scaled::kAll;
  note(ScaleRecorded{scaled, !scale.is_same(scale_) || scaled != records_.scaled});
  scale_ = scale;
}

void PendingStep::set_scale(const at::Tensor& scale) {
  const at::NoGradGuard no_grad;
  check_scale(scale);
  if (records_.holds()) prepare();  // forgets what was recorded for other gradients
  record_scale(scale, /*wide_unscaled=*/false);
}

void PendingStep::unscale_(const at::Tensor& scale) {
  const at::NoGradGuard no_grad;
  check_scale(scale);
  prepare();
  if (records_.any_limit()) write_gradients();  // which are divided, limited as they are
  note(Unscaled{});
  scale_ = scale;
  for (auto& table : tables_)
    if (table.has_wide()) table.unscale_wide(scale);
  read_gradients();  // as they are now
  keep_gradients();
  for (auto& table : tables_) {
    table.watch_narrow();
    table.note_unscaled();
  }
}

PendingStep::Since PendingStep::since_unscale() {
  const at::NoGradGuard no_grad;
  prepare();
  bool arrived = false, divided = false;
  for (const auto& table : tables_) {
    const auto found = table.since_unscaled();
    arrived |= found.arrived;
    divided |= found.divided;
  }
  if (!arrived) return Since::kUnscaled;
  return divided ? Since::kMixed : Since::kLeftBehind;
}

void PendingStep::end_inspection() {
  for (const auto& table : tables_) table.compare(seen_);
  note(InspectionEnded{seen_});
}

void PendingStep::skip_if(const at::Tensor& found_inf) {
  found_inf_ = found_inf.defined() ? found_inf.to(at::kFloat) : found_inf;
  note(FlagRecorded{found_inf_.defined()});
}

NormPart PendingStep::norm_part() {
  measure();
  return {recorded(kGradientNorm, joint_.gradient_norm), recorded(kFoundInf, joint_.found_inf)};
}

void PendingStep::decide_by_norm(const NormDecision& decision) {
  by_norm_ = decision;
  note(NormDecided{});
}

bool PendingStep::is_still_decided_by_norm() {
  const at::NoGradGuard no_grad;
  prepare();
  return records_.decided;
}

void PendingStep::decide_alone() {
  const JointNorm joint = joint_norm(
      {{recorded(kGradientNorm, joint_.gradient_norm), recorded(kFoundInf, joint_.found_inf)}});
  decide_by_norm({joint, is_above_limit(joint.norm)});
}

void PendingStep::take_nonfinite() { note(NonfiniteAccepted{}); }

void PendingStep::apply_recorded_factors() {
  const at::NoGradGuard no_grad;
  prepare();
  if (records_.clips() || records_.factors) write_gradients();
}

void PendingStep::write_16_bit_gradients_as_fp32() {
  if (!records_.holds()) return;
  const at::NoGradGuard no_grad;
  prepare();
  if (records_.clips() || records_.factors || records_.scaled == Scaled::kNarrow) write_gradients();
}

void PendingStep::write_gradients() {
  std::vector<std::pair<at::Tensor, at::Tensor>> applied;
  for (auto& table : tables_)
    for (Member& member : table.members()) {
      const at::Tensor gradient = used_gradient(reader_of(member.parameter));
      if (gradient.defined()) applied.emplace_back(member.parameter, gradient);
    }
  note(Applied{});
  for (auto& [parameter, gradient] : applied) parameter.mutable_grad() = gradient;
  read_gradients();
  keep_gradients();
}

bool PendingStep::clip_norm(double max_norm) {
  check_limit("max_norm", max_norm);
  const at::NoGradGuard no_grad;
  prepare();
  if (records_.clips() || records_.factors) return false;
  note(ClipRecorded{static_cast<float>(max_norm)});
  measure_if_outdated();
  return true;
}

PendingStep::Reader PendingStep::reader_of(const at::Tensor& parameter) {
  for (auto& table : tables_)
    if (Member* member = table.reader_of(parameter)) return {member, table.place_of(*member)};
  return {};
}

void PendingStep::multiply(const std::vector<at::Tensor>& parameters, const at::Tensor& factor) {
  const at::NoGradGuard no_grad;
  prepare();
  std::vector<std::size_t> places;
  for (const auto& parameter : parameters) {
    const auto [member, place] = reader_of(parameter);
    if (!member) continue;
    member->factor = factor.to(member->work.device(), at::kFloat).contiguous();
    places.push_back(place);
  }
  note(FactorRecorded{places});
  keep_gradients();
}

void PendingStep::clip_value(const std::vector<at::Tensor>& parameters, double limit) {
  check_limit("limit", limit);
  const at::NoGradGuard no_grad;
  prepare();
  std::vector<std::size_t> places;
  for (const auto& parameter : parameters) {
    const auto [member, place] = reader_of(parameter);
    if (member) places.push_back(place);
  }
  note(LimitRecorded{places, static_cast<float>(limit)});
  keep_gradients();
}

at::Tensor PendingStep::unscaled_grad(const at::Tensor& parameter) {
  const at::NoGradGuard no_grad;
  prepare();
  const Reader reader = reader_of(parameter);
  if (reader.member) note(Shown{reader.place});
  return used_gradient(reader);
}

at::Tensor PendingStep::used_gradient(const Reader& reader) const {
  if (!reader.member) return {};
  const Member& member = *reader.member;
  const auto device = member.work.device();
  const bool narrow = tensor::is_16_bit(member.gradient->scalar_type());
  at::Tensor gradient =
      member.gradient->to(arithmetic_of(member), /*non_blocking=*/false, /*copy=*/true);
  if (records_.is_scaled(narrow)) gradient.mul_(tensor::inverse_of_scale(scale_).to(device));
  if (records_.clips()) gradient.mul_(clip_factor(records_.max_norm).to(device));
  if (member.factor.defined()) gradient.mul_(member.factor);
  const float limit = records_.tensors[reader.place].limit;
  return limit == kernels::kNoLimit ? gradient : gradient.clamp_(-limit, limit);
}

/// kernels::clip_factor_of the norm, on the norm's device.
at::Tensor PendingStep::clip_factor(float max_norm) const {
  const at::Tensor norm = recorded(kGradientNorm, joint_.gradient_norm) + 1e-6;
  return (at::full_like(norm, max_norm) / norm).clamp_max(1);
}

// The step

void PendingStep::set_inputs() {
  kernels::StepInputs inputs;
  inputs.max_norm = records_.max_norm;
  inputs.skip_nonfinite = skips_nonfinite();
  inputs.measured = checks();
  inputs.rounding_seed = options_.rounding_seed;
  if (const auto device = deciding_device()) {
    if (!record_.defined())
      record_ = at::empty({kRecordFields}, at::TensorOptions(*device).dtype(at::kFloat));
    // The program may let go of the result before this stream has written it.
    if (device->is_cuda()) record_.record_stream(*current_stream(*device));
    inputs.record = static_cast<kernels::StepRecord*>(record_.mutable_data_ptr());
  }
  const bool wide_unscaled = records_.scaled == Scaled::kNarrow;
  for (auto& table : tables_)
    table.set_inputs(scale_, found_inf_, by_norm_.above, wide_unscaled, inputs);
}

void PendingStep::measure() {
  const at::NoGradGuard no_grad;
  prepare();
  measure_if_outdated();
}

void PendingStep::measure_if_outdated() {
  if (records_.norm == Norm::kCurrent) return;
  measure_now();
  keep_gradients();
}

void PendingStep::measure_now() {
  if (records_.norm != Norm::kUnknown) record_.reset();  // what was handed out keeps its numbers
  set_inputs();
  for (auto& table : tables_) table.measure();
  note(Measured{});
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
    table.update(records_.tensors);
  }
  const float found = found_inf_.defined() ? read(found_inf_) : joint_.found_inf;
  const bool bad = (skips_nonfinite() && found != 0) || !kernels::is_usable(1 / scale());
  joint_above_ = !bad && by_norm_.above.defined() && read(by_norm_.above) != 0;
  joint_.skipped = bad || joint_above_ ? 1 : 0;
  if (!checks()) joint_.gradient_norm = std::nanf("");
  if (joint_.skipped == 0) ++taken_;
}

void PendingStep::step() {
  if (checks() && records_.norm != Norm::kCurrent) measure_now();
  if (guard_ && !records_.decided) decide_alone();
  join_earlier_found();
  set_inputs();
  if (deciding_device()) {
    tables_.front().update(records_.tensors);
  } else {
    update_joined();
  }
  if (guard_) guard_->note(by_norm_, recorded(kSkipped, joint_.skipped));
  if (!deciding_device() && joint_.skipped != 0 && !joint_above_) warnings_.of_overflow(tables_);
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
  record_scale(scale, wide_unscaled);
  measure_if_outdated();
  return recorded(kFoundInf, joint_.found_inf);
}

StepResult PendingStep::run(const torch::optim::Optimizer* optimizer, const at::Tensor& loss) {
  const at::NoGradGuard no_grad;
  prepare();
  if (records_.any_gradient()) step();
  if (records_.any_gradient() && !deciding_device() && scale_.defined())
    warnings_.of_clipping(scale(), joint_.gradient_norm);
  const StepResult done = result(optimizer, loss);
  note(StepEnded{});
  if (graph::RecordingScope::current()) join_recording();
  return done;
}

/// The rates and the memory of the step that was recorded.
void PendingStep::join_recording() {
  if (!deciding_device()) return;
  const auto recorded = std::make_shared<TensorTable::Recorded>(tables_.front().take_recorded());
  const auto same = [weak = weak_from_this(), builds = builds_] {
    auto self = weak.lock();
    return self && self->builds_ == builds ? self : nullptr;
  };
  const auto prepare = [same, recorded] {
    const at::NoGradGuard no_grad;
    const auto self = same();
    return self && self->source_.is_unchanged() && self->update_groups(self->source_.groups()) &&
           self->tables_.front().prepare_replay(*recorded);
  };
  const auto note = [same] {
    if (const auto self = same()) self->tables_.front().note_replay();
  };
  graph::RecordingScope::current()->add({.prepare = prepare, .note = note});
}

StepResult PendingStep::result(const torch::optim::Optimizer* optimizer,
                               const at::Tensor& loss) const {
  const auto device = deciding_device();
  if (device && records_.any_gradient()) return {optimizer, record_, loss, ordered_stream(*device)};
  StepResult::Numbers numbers{.grad_norm = std::nanf(""), .scale = scale()};
  if (records_.any_gradient()) {
    numbers.found_inf = joint_.skipped;
    numbers.grad_norm = joint_.gradient_norm;
    numbers.above_norm = joint_above_ ? 1 : 0;
  }
  return {optimizer, numbers, loss};
}

}  // namespace demi::optim
