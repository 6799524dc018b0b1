#include "demi/scaler/inspections.h"

#include <torch/types.h>

#include "demi/core/error.h"
#include "demi/optim/optimizer.h"
#include "demi/step/pending_step.h"

namespace demi::scaler {

void leave_behind(torch::optim::Optimizer& optimizer, Inspection& inspection, const char* where) {
  auto* own = dynamic_cast<optim::Optimizer*>(&optimizer);
  if (!own || inspection.stage != Stage::kUnscaled || !inspection.in_place) return;
  using Since = optim::PendingStep::Since;
  const Since since = own->pending().since_unscale();
  if (since == Since::kLeftBehind) inspection = {};
  if (since != Since::kMixed) return;
  refuse({.where = where,
          .what = "backward has added to gradients that unscale_() had divided by the scale",
          .seen = "backward() after unscale_()",
          .accepted = "unscale_() after the last backward() of a step",
          .advice = "to give a batch up, drop its gradients before the next backward(): "
                    "zero_grad(), without set_to_none = false"});
}

Inspection& Inspections::of(const torch::optim::Optimizer& optimizer) {
  Inspection& inspection = all_[&optimizer];
  if (inspection.is_own && inspection.own.expired()) inspection = {};
  return inspection;
}

const Inspection* Inspections::find(const torch::optim::Optimizer& optimizer) const {
  const auto found = all_.find(&optimizer);
  return found == all_.end() ? nullptr : &found->second;
}

void Inspections::refuse_second_division(torch::optim::Optimizer& optimizer, bool in_place) const {
  if (all_.size() < 2) return;
  const InspectedGradients now(optimizer, in_place);
  for (const auto& [other, inspection] : all_)
    if (other != &optimizer &&
        inspection.gradients.would_be_divided_again(now, inspection.stage == Stage::kUnscaled))
      refuse(
          {.where = "scaler.unscale_",
           .what = "a parameter belongs to two optimizers, and its gradient would be divided by "
                   "the scale for each of them",
           .advice =
               "give each parameter to one optimizer, or compute new gradients before the second"});
}

Totals Inspections::totals(c10::Device device) const {
  Totals totals;
  const auto keep_greatest = [device](at::Tensor& greatest, const at::Tensor& one) {
    const at::Tensor here = one.to(device);
    greatest = greatest.defined() ? at::maximum(greatest, here) : here;
  };
  for (const auto& [optimizer, inspection] : all_) {
    for (const auto& [from, flag] : inspection.found) {
      at::Tensor& all = totals.found[from];
      all = all.defined() ? at::maximum(all, flag) : flag;
    }
    if (inspection.above.defined() && inspection.stage == Stage::kStepped)
      keep_greatest(totals.above, inspection.above);
    if (inspection.amax.defined()) keep_greatest(totals.amax, inspection.amax);
  }
  return totals;
}

void Inspections::end() {
  for (auto& [optimizer, inspection] : all_)
    if (const auto own = inspection.stage == Stage::kUnscaled ? inspection.own.lock() : nullptr)
      own->end_inspection();
  all_.clear();
}

}  // namespace demi::scaler
