#include "demi/train/divergence.h"

#include <fmt/format.h>

#include <cmath>

namespace demi::train {
namespace {

// The first step that was taken although its gradients held Inf or NaN: none where such steps are
// skipped.
const StepMetrics* taken_with_nonfinite(const History& history) {
  for (const StepMetrics& step : history.steps)
    if (!step.skipped && step.grad_norm && !std::isfinite(*step.grad_norm)) return &step;
  return nullptr;
}

std::string complaint_of(const History& history, const BadSteps& bad, const Precision& precision) {
  const StepMetrics& first = bad.first;
  const bool is_loss = !std::isfinite(first.loss);
  std::string text =
      fmt::format("{} NaN or Inf from step {} on, in {} step{}; learning rate {:g}",
                  is_loss ? "the loss is" : "the gradients hold, though the loss is sound,",
                  history.steps.back().step - bad.in_a_row + 1, bad.in_a_row,
                  bad.in_a_row == 1 ? "" : "s in a row", first.learning_rate);
  if (first.loss_scale) text += fmt::format(", loss scale {:g}", *first.loss_scale);
  if (const StepMetrics* taken = taken_with_nonfinite(history);
      taken && std::isfinite(taken->loss)) {
    text += fmt::format(
        "; step {} was taken although its gradients held Inf or NaN, which the weights hold since "
        "then: let such steps be skipped (GradScalerOptions::skip_nonfinite, --skip)",
        taken->step);
  } else if (precision.is_mixed()) {
    text +=
        "; train once without the region (TrainerOptions::autocast = false) and once without loss "
        "scaling (TrainerOptions::loss_scale off): the one that mends it is where the NaN comes "
        "from; if neither does, the learning rate is too high or the data hold NaN";
  } else {
    text += "; try a lower learning rate, and look for NaN in the data";
  }
  return text;
}

}  // namespace

bool is_bad(const StepMetrics& step, bool loss_is_finite, const GradScalerOptions& scaling) {
  if (!loss_is_finite) return true;
  if (!step.skipped || step.skipped_for_norm) return false;
  if (!step.loss_scale) return true;
  // Another overflow would not lower the scale: it is static, or at its floor.
  const ScaleState now{.scale = static_cast<float>(*step.loss_scale), .amax_history = {}};
  return next_state(now, {.found_inf = true}, scaling).scale >= now.scale;
}

std::optional<std::string> why_give_up(const History& history, const BadSteps& bad,
                                       int64_t give_up_after, const Precision& precision) {
  if (give_up_after == 0 || bad.in_a_row == 0) return std::nullopt;
  const int64_t steps = history.steps.back().step;
  // A static scale that is too high for the first gradients may do for later ones.
  const bool is_told_at_once = !bad.first.loss_scale || !std::isfinite(bad.first.loss);
  const bool never_good = bad.in_a_row == steps && steps >= kFirstSteps && is_told_at_once;
  if (bad.in_a_row < give_up_after && !never_good) return std::nullopt;
  return complaint_of(history, bad, precision);
}

std::optional<std::string> why_failed(const History& history, const BadSteps& bad,
                                      int64_t give_up_after, const Precision& precision) {
  if (give_up_after == 0 || history.steps.empty()) return std::nullopt;
  const StepMetrics& last = history.steps.back();
  if (bad.in_a_row > 0 && !std::isfinite(last.loss)) return complaint_of(history, bad, precision);
  if (history.epochs.empty()) return std::nullopt;
  const auto& validation = history.epochs.back().validation;
  if (!validation || std::isfinite(validation->loss)) return std::nullopt;
  return fmt::format(
      "the loss in validation is NaN or Inf after step {}, the last one; learning rate {:g}",
      last.step, last.learning_rate);
}

}  // namespace demi::train
