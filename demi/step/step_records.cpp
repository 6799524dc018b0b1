#include "demi/step/step_records.h"

#include <algorithm>
#include <utility>

namespace demi::optim {
namespace {

using SeenTensors = std::span<const Seen>;

/// Everything. The memory is used again.
void forget(StepRecords& records) {
  std::vector<TensorRecord> tensors = std::move(records.tensors);
  std::fill(tensors.begin(), tensors.end(), TensorRecord{});
  records = {.tensors = std::move(tensors)};
}

/// All but what holds whatever the gradients are.
void forget_gradients(StepRecords& records, Scaled scaled) {
  const bool flagged = records.flagged, takes_nonfinite = records.takes_nonfinite;
  forget(records);
  records.scaled = scaled;
  records.flagged = flagged;
  records.takes_nonfinite = takes_nonfinite;
}

/// A clip that was measured by the norm so far becomes a factor of the gradients that are left of
/// those that it was measured on.
void outdate_norm(StepRecords& records) {
  if (records.norm == Norm::kUnknown) return;
  records.norm = Norm::kOutdated;
  if (!records.clips()) return;
  records.max_norm = kernels::kNoLimit;
  records.factors = true;
  for (TensorRecord& tensor : records.tensors) tensor.factor |= tensor.held;
}

void unseal(StepRecords& records) {
  if (records.scope == Scope::kSealed) records.scope = Scope::kHeld;
}

bool are_unchanged(const StepRecords& records, SeenTensors seen) {
  for (std::size_t i = 0; i < seen.size(); ++i)
    if (seen[i] != Seen::kUnchanged && (seen[i] != Seen::kNone || records.tensors[i].held))
      return false;
  return true;
}

bool are_all_lost(const StepRecords& records, SeenTensors seen) {
  bool any = false;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (!records.tensors[i].held) continue;
    if (!is_lost(records.tensors[i], seen[i])) return false;
    any = true;
  }
  return any;
}

void apply(StepRecords& records, const Looked& event) {
  const bool sealed = records.scope == Scope::kSealed;
  if (are_all_lost(records, event.seen) || (sealed && !are_unchanged(records, event.seen)))
    forget_gradients(records, records.scaled == Scaled::kAll ? Scaled::kAll : Scaled::kNone);
  bool changed = false;
  for (std::size_t i = 0; i < event.seen.size(); ++i) {
    TensorRecord& tensor = records.tensors[i];
    const Seen seen = event.seen[i];
    const bool was_measured = tensor.measured;
    if (is_lost(tensor, seen)) tensor = {};
    tensor.has_gradient = seen != Seen::kNone;
    tensor.measured = was_measured && seen == Seen::kUnchanged;
    changed |= tensor.has_gradient ? !tensor.measured : was_measured;
  }
  if (changed) outdate_norm(records);
}

void apply(StepRecords& records, const ScaleRecorded& event) {
  if (event.is_new) outdate_norm(records);
  records.scaled = event.scaled;
  unseal(records);
}

void apply(StepRecords& records, const Unscaled&) {
  outdate_norm(records);
  records.scaled = Scaled::kNarrow;
  unseal(records);
  for (TensorRecord& tensor : records.tensors) tensor.measured = false;
}

void apply(StepRecords& records, const Measured&) {
  records.norm = Norm::kCurrent;
  for (TensorRecord& tensor : records.tensors) tensor.measured = tensor.has_gradient;
}

void apply(StepRecords& records, const Held&) {
  if (records.scope == Scope::kAny) records.scope = Scope::kHeld;
  for (TensorRecord& tensor : records.tensors) tensor.held = tensor.has_gradient;
}

void apply(StepRecords& records, const ClipRecorded& event) { records.max_norm = event.max_norm; }

void apply(StepRecords& records, const FactorRecorded& event) {
  for (const std::size_t i : event.tensors) records.tensors[i].factor = true;
  records.factors |= !event.tensors.empty();
}

void apply(StepRecords& records, const LimitRecorded& event) {
  for (const std::size_t i : event.tensors) {
    float& limit = records.tensors[i].limit;
    limit = std::min(limit, event.limit);
  }
  records.factors |= !event.tensors.empty();
}

void apply(StepRecords& records, const Shown& event) { records.tensors[event.tensor].shown = true; }

void apply(StepRecords& records, const FlagRecorded& event) { records.flagged = event.is_defined; }

void apply(StepRecords& records, const NonfiniteAccepted&) { records.takes_nonfinite = true; }

void apply(StepRecords& records, const Applied&) {
  forget_gradients(records, records.scaled == Scaled::kNone ? Scaled::kNone : Scaled::kNarrow);
}

void apply(StepRecords& records, const StepEnded&) { forget(records); }

void apply(StepRecords& records, const InspectionEnded& event) {
  if (!records.holds()) return;
  if (are_unchanged(records, event.seen))
    records.scope = Scope::kSealed;
  else
    forget(records);
}

void apply(StepRecords& records, const Reordered& event) {
  outdate_norm(records);
  std::vector<TensorRecord> tensors(event.from.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (event.from[i] < 0) continue;
    tensors[i] = records.tensors[static_cast<std::size_t>(event.from[i])];
    tensors[i].measured = false;
  }
  records.tensors = std::move(tensors);
}

}  // namespace

bool StepRecords::any_gradient() const {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const TensorRecord& tensor) { return tensor.has_gradient; });
}

bool StepRecords::any_limit() const {
  return factors && std::any_of(tensors.begin(), tensors.end(), [](const TensorRecord& tensor) {
           return tensor.limit != kernels::kNoLimit;
         });
}

StepRecords after(StepRecords records, const Event& event) {
  std::visit([&](const auto& one) { apply(records, one); }, event);
  return records;
}

}  // namespace demi::optim
