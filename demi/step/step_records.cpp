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

/// Forgets all records but those that hold for any gradients.
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
  records.decided = false;
  if (!records.clips()) return;
  records.max_norm = kernels::kNoLimit;
  records.factors = true;
  for (TensorRecord& tensor : records.tensors) tensor.factor |= tensor.held;
}

void unseal(StepRecords& records) {
  if (records.scope == Scope::kSealed) records.scope = Scope::kHeld;
}

struct Comparison {
  bool kept = false, lost = false;  // of the held gradients
  bool unchanged = true;            // no gradient is another than the held one, or new
  bool gone = false;                // one is, whether it was held or not
};

Comparison compare(const StepRecords& records, SeenTensors seen) {
  Comparison found;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const TensorRecord& tensor = records.tensors[i];
    const bool lost = is_lost(tensor, seen[i]), is_none = seen[i] == Seen::kNone;
    found.lost |= lost;
    found.kept |= tensor.held && !lost;
    found.unchanged &= is_none ? !tensor.held : seen[i] == Seen::kUnchanged;
    found.gone |= is_none && tensor.has_gradient;
  }
  return found;
}

void apply(StepRecords& records, const Looked& event) {
  const Comparison found = compare(records, event.seen);
  if (found.unchanged && !found.gone) return;
  if ((found.lost && !found.kept) || records.scope == Scope::kSealed)
    forget_gradients(records, records.scaled == Scaled::kAll ? Scaled::kAll : Scaled::kNone);
  for (std::size_t i = 0; i < event.seen.size(); ++i) {
    TensorRecord& tensor = records.tensors[i];
    if (is_lost(tensor, event.seen[i])) tensor = {};
    tensor.has_gradient = event.seen[i] != Seen::kNone;
    tensor.measured &= event.seen[i] == Seen::kUnchanged;
  }
  outdate_norm(records);
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

void apply(StepRecords& records, const NormDecided&) { records.decided = true; }

void apply(StepRecords& records, const NonfiniteAccepted&) { records.takes_nonfinite = true; }

void apply(StepRecords& records, const Applied&) {
  forget_gradients(records, records.scaled == Scaled::kNone ? Scaled::kNone : Scaled::kNarrow);
}

void apply(StepRecords& records, const StepEnded&) { forget(records); }

void apply(StepRecords& records, const InspectionEnded& event) {
  if (!records.holds()) return;
  if (compare(records, event.seen).unchanged)
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
