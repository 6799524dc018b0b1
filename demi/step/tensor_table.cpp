#include "demi/step/tensor_table.h"

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <algorithm>

#include "demi/kernels/decide.h"
#include "demi/kernels/rule_info.h"
#include "demi/step/aten_passes.h"
#include "demi/step/coded_state.h"
#include "demi/step/layout.h"
#include "demi/step/matrices.h"
#include "demi/step/read_gradient.h"
#include "demi/tensor/dtype.h"
#include "demi/tensor/parallel.h"
#include "demi/tensor/version.h"

namespace demi::optim {
namespace {

using tensor::is_16_bit;
using tensor::kElementsPerThread;
using tensor::storage_of;

void add_states(kernels::TensorEntry& entry, ParamState& state, const kernels::Group& group) {
  const std::span<const kernels::State> states = kernels::info_of(group.rule).states;
  const std::uint32_t kept = kernels::states_kept(group.rule, group);
  for (size_t k = 0; k < states.size(); ++k) {
    if ((kept >> k & 1U) == 0) continue;
    void* memory = state[states[k].name].mutable_data_ptr();
    if (states[k].form == kernels::StateForm::scalar) {
      entry.scalar = static_cast<float*>(memory);
      continue;
    }
    entry.coded_moment[k] = coded_array(state, states[k].name);
    if (!entry.coded_moment[k].values) entry.moment[k] = static_cast<float*>(memory);
  }
}

void* remainder_of(const Member& member) {
  const at::Tensor& remainder = member.state->remainder;
  return remainder.defined() ? remainder.mutable_data_ptr() : nullptr;
}

std::vector<kernels::TensorEntry> entries_of(std::vector<Member>& members,
                                             const std::vector<int>& group_of,
                                             const Groups& groups) {
  std::vector<kernels::TensorEntry> entries;
  for (size_t i = 0; i < members.size(); ++i) {
    Member& member = members[i];
    kernels::TensorEntry entry;
    entry.length = member.work.numel();
    entry.group = group_of[i];
    entry.number = member.number;
    entry.measured_only = member.target == Target::kNone;
    if (entry.measured_only) {
      entries.push_back(entry);
      continue;
    }
    // begin() sets the real pointer: a mutable one taken here would cost the parameter its copies.
    // The tensor operations that serve fp64 and other devices do not use it.
    void* parameter = const_cast<void*>(member.work.const_data_ptr());
    if (member.target == Target::kCoded)
      entry.coded_parameter = {.parameter = static_cast<std::uint16_t*>(parameter),
                               .rest = remainder_of(member),
                               .codec = *member.codec};
    else
      entry.parameter = static_cast<float*>(parameter);
    add_states(entry, *member.state, groups.numbers[group_of[i]]);
    entry.step = member.state->step.mutable_data_ptr<int64_t>();
    if (kernels::info_of(groups.numbers[group_of[i]].rule).applied_by)
      entry.rate_factor = rate_factor_of(member.work.sizes(), groups.matrices[group_of[i]]);
    entries.push_back(entry);
  }
  return entries;
}

void unscale_dense(const kernels::CpuKernels& kernels, const at::Tensor& gradient,
                   float inverse_scale) {
  auto* values = gradient.mutable_data_ptr<float>();
  at::parallel_for(0, gradient.numel(), kElementsPerThread, [&](int64_t begin, int64_t end) {
    kernels.unscale(values + begin, inverse_scale, end - begin);
  });
  gradient.unsafeGetTensorImpl()->bump_version();
}

/// The gradient that the implementation holds: at::Tensor's own grad() first asks whether this is a
/// leaf.
const at::Tensor& gradient_of(const Member& member) {
  return member.parameter.unsafeGetTensorImpl()->grad();
}

Seen seen_in(const Member& member, const at::Tensor& gradient) {
  if (!gradient.defined()) return Seen::kNone;
  if (is_unchanged(member.held, gradient)) return Seen::kUnchanged;
  return is_still_there(member, gradient) ? Seen::kWritten : Seen::kOther;
}

/// Whether the program itself has replaced a 16-bit gradient, unless by an fp32 one after it had
/// asked for the true gradient.
bool is_made_of_narrow(const Member& member, bool shown, const at::Tensor& gradient) {
  const HeldGradient& held = member.held;
  if (!gradient.defined() || gradient.is_same(held.gradient) ||
      !is_16_bit(held.gradient.scalar_type()))
    return false;
  const bool by_backward = arrivals_of(member) != held.arrivals;
  return !by_backward && !(shown && !is_16_bit(gradient.scalar_type()));
}

}  // namespace

TensorTable::Kept TensorTable::Kept::of(const kernels::Group& group) {
  return {group.rule, kernels::states_kept(group.rule, group),
          kernels::states_coded(group.rule, group)};
}

TensorTable::TensorTable(std::size_t first, TableKernels kernels, std::vector<Member> members,
                         const std::vector<int>& group_of, const Groups& groups, at::Tensor state)
    : first_(first),
      kernels_(kernels),
      members_(std::move(members)),
      plan_(entries_of(members_, group_of, groups), groups.numbers),
      state_(std::move(state)),
      rates_(groups.numbers.size()),
      matrices_(groups.matrices),
      batches_(matrix_batches(plan_, members_, group_of, groups)) {
  if (kernels_.device) device_.emplace(*kernels_.device, plan_, state_);
  for (const auto& group : groups.numbers) kept_.push_back(Kept::of(group));
  update_groups(groups);
  int64_t elements = 1;
  std::vector<at::Tensor> direct;
  for (const Member& member : members_) {
    elements += member.work.numel();
    places_.emplace(member.parameter.unsafeGetTensorImpl(), places_.size());
    if (member.target == Target::kParameter) direct.push_back(member.parameter);
  }
  targets_ = weights::StepTargets(std::move(direct));
  grain_ = std::max<int64_t>(1, plan_.block_count() * kElementsPerThread / elements);
}

void TensorTable::compare(std::span<Seen> seen) const {
  for (size_t i = 0; i < members_.size(); ++i)
    seen[first_ + i] = seen_in(members_[i], gradient_of(members_[i]));
}

/// Returns whether it was made of a 16-bit gradient that was held.
bool TensorTable::read_gradient(size_t i, const TensorRecord& record, Seen& seen) {
  static const float empty = 0;
  Member& member = members_[i];
  kernels::TensorEntry& entry = plan_.tensors()[i];
  const at::Tensor& gradient = gradient_of(member);
  seen = seen_in(member, gradient);
  entry.gradient = nullptr;
  bool written = false;
  if (is_lost(record, seen)) {
    written = is_made_of_narrow(member, record.shown, gradient);
    member.held = {};
    member.factor.reset();
  }
  if (seen == Seen::kNone) return written;
  const bool narrow = is_16_bit(gradient.scalar_type());
  written |= narrow && seen == Seen::kWritten;
  has_wide_ |= !narrow;
  if (!record.measured || seen != Seen::kUnchanged) set_read_gradient(member, gradient);
  entry.gradient = member.gradient->numel() ? member.gradient->const_data_ptr() : &empty;
  entry.gradient_storage = storage_of(member.gradient->scalar_type());
  return written;
}

bool TensorTable::read_gradients(Records records, std::span<Seen> seen) {
  has_wide_ = false;
  bool written = watch_.written();
  for (size_t i = 0; i < members_.size(); ++i)
    written |= read_gradient(i, records[first_ + i], seen[first_ + i]);
  return written;
}

const float* TensorTable::DeviceCopy::pointer(const at::Tensor& tensor, c10::Device device) {
  if (!tensor.is_same(source)) {
    source = tensor;
    copy = tensor.defined() ? tensor.to(device, at::kFloat).contiguous() : at::Tensor();
  }
  return copy.defined() ? copy.const_data_ptr<float>() : nullptr;
}

void TensorTable::set_inputs(const at::Tensor& scale, const at::Tensor& found_inf,
                             const at::Tensor& above_norm, bool wide_unscaled,
                             const kernels::StepInputs& others) {
  // The tensor operations of other devices decide on the host.
  const c10::Device deciding = kernels_ ? device() : c10::Device(at::kCPU);
  plan_.inputs() = others;
  plan_.inputs().scale = scale_.pointer(scale, deciding);
  plan_.inputs().found_inf = found_inf_.pointer(found_inf, deciding);
  plan_.inputs().above_norm = above_norm_.pointer(above_norm, deciding);
  for (auto& entry : plan_.tensors())
    if (entry.gradient)
      entry.unscaled = wide_unscaled && entry.gradient_storage == kernels::Storage::fp32;
}

void TensorTable::unscale_wide(const at::Tensor& scale) {
  const at::NoGradGuard no_grad;
  const at::Tensor inverse =
      scale.to(device()).to(at::kDouble).reciprocal().to(at::kFloat);  // divided in fp64
  std::vector<at::Tensor> together;  // one launch for many, on a device
  for (Member& member : members_) {
    at::Tensor gradient = member.parameter.grad();
    if (!gradient.defined() || is_16_bit(gradient.scalar_type())) continue;
    const bool strided = gradient.layout() == at::kStrided;
    if (strided && overlaps_itself(gradient)) {
      member.parameter.mutable_grad() = gradient.mul(inverse);
      // The new tensor is the same gradient, with memory of its own.
      if (member.held.gradient.defined()) member.held.gradient = member.parameter.grad();
    } else if (!strided || !gradient.is_non_overlapping_and_dense() ||
               gradient.scalar_type() != at::kFloat) {
      (gradient.is_sparse() ? gradient._values() : gradient).mul_(inverse);
    } else if (kernels_.cpu) {
      unscale_dense(*kernels_.cpu, gradient, *inverse.const_data_ptr<float>());
    } else {
      together.push_back(gradient);
    }
  }
  if (!together.empty()) at::_foreach_mul_(together, inverse);
}

/// Tells the allocator that the optimizer's memory is in use on the current stream.
void TensorTable::note_stream() {
  if (!device().is_cuda()) return;
  const c10::Stream stream = *current_stream(device());
  if (!streams_.is_new(stream)) return;
  if (device_) device_->record_stream(stream);
  for (Member& member : members_) {
    if (member.target == Target::kNone) continue;
    if (member.target != Target::kParameter) member.work.record_stream(stream);
    for (const auto& [name, tensor] : member.state->tensors())
      if (tensor.is_cuda()) at::Tensor(tensor).record_stream(stream);
  }
}

/// Records the stream for tensors that live for one step, or are replaced between two: they may
/// have been made on another stream.
void TensorTable::note_stream_of_inputs() {
  if (!device().is_cuda()) return;
  const c10::Stream stream = *current_stream(device());
  const auto note = [&](const at::Tensor& tensor) {
    if (tensor.defined() && tensor.is_cuda()) tensor.record_stream(stream);
  };
  for (const DeviceCopy* copy : {&scale_, &found_inf_, &above_norm_}) note(copy->copy);
  for (const DeviceCopy& rates : rates_) note(rates.copy);
  for (const Member& member : members_) {
    note(member.factor);
    note(member.staged);
  }
}

void TensorTable::measure() {
  note_stream();
  note_stream_of_inputs();
  if (device_) {
    device_->measure(plan_);
  } else if (kernels_.cpu) {
    const kernels::StepTable table = plan_.table();
    at::parallel_for(0, table.block_count, grain_,
                     [&](int64_t begin, int64_t end) { kernels_.cpu->measure(table, begin, end); });
    kernels::reduce(table);
  } else {
    aten::measure(plan_, members_);
  }
}

void TensorTable::keep_gradients() {
  for (Member& member : members_) {
    const at::Tensor& gradient = gradient_of(member);
    if (!gradient.defined()) continue;
    member.held = {.gradient = gradient,
                   .data = data_of(gradient),
                   .version = version_of(gradient),
                   .arrivals = arrivals_of(member)};
  }
}

void TensorTable::note_unscaled() {
  for (Member& member : members_)
    member.unscaled = UnscaledGradient(gradient_of(member), arrivals_of(member));
}

TensorTable::SinceUnscaled TensorTable::since_unscaled() const {
  SinceUnscaled found;
  for (const Member& member : members_) {
    const at::Tensor& gradient = gradient_of(member);
    if (!gradient.defined()) continue;
    const UnscaledGradient& then = member.unscaled;
    const bool is_same = then.is(gradient);
    const bool arrived =
        arrivals_of(member) != then.arrivals && !(is_same && version_of(gradient) == then.version);
    found.arrived |= arrived;
    // A gradient of 16 bits carries the scale until the step, and so does a sum that begins with
    // it.
    found.divided |= arrived ? is_same && then.divided : !is_16_bit(gradient.scalar_type());
  }
  return found;
}

void TensorTable::watch_narrow() {
  for (const Member& member : members_) {
    const at::Tensor& gradient = member.held.gradient;
    if (!gradient.defined() || gradient.layout() != at::kStrided || gradient.numel() == 0 ||
        !is_16_bit(gradient.scalar_type()))
      continue;
    return watch_.begin(gradient);
  }
}

void TensorTable::begin(Records records) {
  auto entries = plan_.tensors();
  const bool captured = device_ && device_->is_captured();
  const weights::StepTarget* target = kernels_ ? targets_.begin(captured).data() : nullptr;
  for (size_t i = 0; i < members_.size(); ++i) {
    Member& member = members_[i];
    kernels::TensorEntry& entry = entries[i];
    if (member.target == Target::kNone) {
      entry.gradient = nullptr;  // measured; the kernels leave an entry without one alone
      continue;
    }
    entry.factor = member.factor.defined() ? member.factor.const_data_ptr<float>() : nullptr;
    entry.limit = records[first_ + i].limit;
    if (member.target == Target::kParameter) {
      if (target == nullptr) continue;  // tensor operations, which find the parameter themselves
      // After set_data() `work` must not keep the old memory alive.
      if (entry.parameter != target->parameter) member.work = member.parameter.detach();
      entry.parameter = static_cast<float*>(target->parameter);
      for (int k = 0; k < 2; ++k) {
        const bool used = k < target->copy_count;
        entry.copy[k] = used ? target->copies[k].data : nullptr;
        entry.copy_storage[k] = used ? storage_of(target->copies[k].dtype) : kernels::Storage::none;
      }
      ++target;
      continue;
    }
    if (member.target == Target::kCoded) {
      if (!kernels_) continue;
      void* parameter = member.parameter.mutable_data_ptr();
      // After set_data() `work` must not keep the old memory alive.
      if (entry.coded_parameter.parameter != parameter) member.work = member.parameter.detach();
      entry.coded_parameter.parameter = static_cast<std::uint16_t*>(parameter);
      continue;
    }
    refresh_master(member);
    if (member.target == Target::kStaging && !is_16_bit(member.parameter.scalar_type())) {
      const at::NoGradGuard no_grad;
      member.work.copy_(member.parameter);
    }
    if (member.target == Target::kMaster && kernels_) {
      entry.copy[0] = member.parameter.mutable_data_ptr();
      entry.copy_storage[0] = storage_of(member.parameter.scalar_type());
    }
  }
}

void TensorTable::finish() {
  if (kernels_) targets_.finish();
  // The host does not know what a device decides. It acts as if the step was taken, which is
  // harmless.
  const bool skipped = !device_ && plan_.state().skipped != 0;
  for (Member& member : members_) {
    if (member.target == Target::kParameter || member.target == Target::kNone) continue;
    const bool is_copied =
        member.target == Target::kStaging || (member.target == Target::kMaster && !kernels_);
    if (!skipped && is_copied) {
      const at::NoGradGuard no_grad;
      at::Tensor parameter = member.parameter;
      parameter.copy_(member.work);
    } else if (!skipped && !member.parameter.is_inference()) {
      member.parameter.unsafeGetTensorImpl()->bump_version();
    }
    note_as_written(member);
  }
}

TensorTable::Recorded TensorTable::take_recorded() {
  Recorded recorded;
  if (device_) recorded.tables = device_->take_recorded();
  recorded.copies = targets_.take_captured();
  for (const Member& member : members_)
    recorded.parameters.push_back(member.parameter.const_data_ptr());
  return recorded;
}

bool TensorTable::prepare_replay(const Recorded& recorded) {
  if (!device_ || !recorded.tables || recorded.parameters.size() != members_.size()) return false;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (members_[i].parameter.const_data_ptr() != recorded.parameters[i]) return false;
    const Target target = members_[i].target;
    if (target == Target::kMaster || target == Target::kStaging) refresh_master(members_[i]);
  }
  device_->upload_groups(*recorded.tables, plan_);
  return true;
}

void TensorTable::note_replay() {
  if (device_) device_->note_replay();
  targets_.note_replay();
  for (Member& member : members_) {
    if (member.target == Target::kParameter || member.target == Target::kNone) continue;
    if (!member.parameter.is_inference()) member.parameter.unsafeGetTensorImpl()->bump_version();
    note_as_written(member);
  }
}

void TensorTable::run_update() {
  kernels::StepTable table;
  if (device_) {
    table = device_->decide(plan_);
  } else {
    table = plan_.table();
    kernels::decide(table);
    if (plan_.state().skipped != 0) return;
    if (!kernels_.cpu) return aten::update(plan_, members_, matrices_);
  }
  for (const kernels::RuleRange& range : plan_.ranges()) {
    table.range = range;
    if (kernels::info_of(range.rule).applied_by)
      update_matrices(table);
    else
      launch(table);
  }
}

/// Passes 2 and 3 of a range with a rule of matrices. A device's products run even if it skips the
/// step: the launches around them then write nothing.
void TensorTable::update_matrices(const kernels::StepTable& table) {
  const auto is_in_range = [&](const MatrixBatch& batch) {
    return batch.first_tensor >= table.range.first_tensor &&
           batch.first_tensor < table.range.end_tensor && has_gradient(batch);
  };
  int64_t bytes = 0;
  for (const MatrixBatch& batch : batches_)
    if (is_in_range(batch)) bytes = std::max(bytes, batch.bytes);
  const at::Tensor memory = at::empty({bytes}, at::TensorOptions(device()).dtype(at::kByte));
  for (const MatrixBatch& batch : batches_)
    if (is_in_range(batch)) update_batch(table, batch, memory);
}

bool TensorTable::has_gradient(const MatrixBatch& batch) const {
  const auto tensors = plan_.tensors();
  for (int32_t t = batch.first_tensor; t < batch.end_tensor; ++t)
    if (tensors[static_cast<size_t>(t)].gradient) return true;
  return false;
}

void TensorTable::update_batch(kernels::StepTable table, const MatrixBatch& batch,
                               const at::Tensor& memory) {
  const Member& member = members_[static_cast<size_t>(batch.first_tensor)];
  const auto group =
      static_cast<size_t>(plan_.tensors()[static_cast<size_t>(batch.first_tensor)].group);
  table.range = plan_.range_of(batch.first_tensor, batch.end_tensor);
  table.direction = memory.mutable_data_ptr();
  table.direction_storage = storage_of(batch.dtype);
  launch(table);
  const int64_t count = batch.end_tensor - batch.first_tensor;
  const at::Tensor directions = memory.narrow(0, 0, batch.bytes).view(batch.dtype);
  orthogonalise({directions, count, directions.numel() / count}, member.work, matrices_[group]);
  table.range.rule = *kernels::info_of(table.range.rule).applied_by;
  launch(table);
}

/// Pass 2 of the table's range, and 3 with a trust ratio.
void TensorTable::launch(const kernels::StepTable& table) {
  if (device_) return device_->update(table);
  const auto each_block = [&](auto pass) {
    at::parallel_for(table.range.first_block, table.range.end_block, grain_,
                     [&](int64_t begin, int64_t end) { pass(table, begin, end); });
  };
  each_block(kernels_.cpu->update);
  if (!kernels::info_of(table.range.rule).has_trust) return;
  kernels::decide_trust(table);
  each_block(kernels_.cpu->apply_trust);
}

void TensorTable::update(Records records) {
  note_stream();
  note_stream_of_inputs();
  begin(records);
  run_update();
  finish();
}

void TensorTable::end_step() {
  scale_ = found_inf_ = above_norm_ = {};
  watch_.end();
  for (Member& member : members_) {
    member.factor.reset();
    member.staged.reset();
    member.held = {};
    member.gradient = nullptr;
  }
  for (auto& entry : plan_.tensors()) {
    entry.gradient = nullptr;
    entry.factor = nullptr;
    entry.limit = kernels::kNoLimit;
  }
}

void TensorTable::update_groups(const Groups& groups) {
  auto numbers = plan_.groups();
  for (size_t g = 0; g < numbers.size(); ++g) {
    numbers[g] = groups.numbers[g];
    const at::Tensor& rates = groups.rates[g];
    if (!rates.defined()) continue;
    const c10::Device reader = device_ ? device() : c10::Device(at::kCPU);
    if (!rates.is_same(rates_[g].source)) rates_[g] = {rates, rates.to(reader)};
    numbers[g].scheduled_rates = rates_[g].copy.const_data_ptr<double>();
    numbers[g].scheduled_count = rates.numel();
  }
}

bool TensorTable::matches(const Groups& groups) const {
  if (groups.numbers.size() != rates_.size() || groups.matrices != matrices_) return false;
  for (const Member& member : members_) {
    const at::Tensor& parameter = member.parameter;
    if (parameter.scalar_type() != member.dtype || parameter.device() != member.device ||
        !tensor::same(parameter.sizes(), member.sizes) ||
        !tensor::same(parameter.strides(), member.strides))
      return false;
    // The kernels ask for the address in every step; tensor operations write through `work`.
    if (!kernels_ && member.target == Target::kParameter &&
        parameter.const_data_ptr() != member.work.const_data_ptr())
      return false;
  }
  for (size_t g = 0; g < kept_.size(); ++g)
    if (Kept::of(groups.numbers[g]) != kept_[g]) return false;
  return true;
}

Member* TensorTable::member_of(const at::Tensor& parameter) {
  const auto place = places_.find(parameter.unsafeGetTensorImpl());
  return place == places_.end() ? nullptr : &members_[place->second];
}

Member* TensorTable::reader_of(const at::Tensor& parameter) {
  Member* member = member_of(parameter);
  return member && plan_.tensors()[index_of(*member)].gradient ? member : nullptr;
}

}  // namespace demi::optim
