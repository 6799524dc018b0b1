#include "demi/loop/metrics.h"

#include <cmath>
#include <utility>

#include "demi/loop/used_rates.h"

namespace demi::loop {

void add_results(const std::vector<StepResult>& results, bool scaled, StepMetrics& record) {
  double squares = 0;
  bool measured = !results.empty(), nonfinite = false;
  for (const StepResult& result : results) {
    const StepResult::Numbers numbers = result.numbers();
    const double norm = numbers.grad_norm;
    const bool skipped = numbers.found_inf != 0;
    record.skipped |= skipped;
    nonfinite |= skipped && numbers.above_norm == 0;
    // NaN: no pass computed it, or it is that of an Inf or NaN.
    measured &= (skipped && numbers.above_norm == 0) || !std::isnan(norm);
    squares += norm * norm;
    if (scaled && !record.loss_scale) record.loss_scale = numbers.scale;
  }
  record.skipped_for_norm = record.skipped && !nonfinite;
  if (measured) record.grad_norm = std::sqrt(squares);
}

std::vector<StepMetrics> UnreadSteps::read(bool scaled, const torch::optim::Optimizer& first) {
  std::vector<const std::vector<StepResult>*> results;
  for (const Step& step : steps_) results.push_back(&step.results);
  const std::vector<double> rates = used_rates(first, results);
  std::vector<StepMetrics> all;
  for (const Step& step : std::exchange(steps_, {})) {
    StepMetrics& record = all.emplace_back(step.known);
    if (!rates.empty()) record.learning_rate = rates[all.size() - 1];
    record.loss = step.loss.item<double>() / static_cast<double>(step.batches);
    add_results(step.results, scaled, record);
  }
  return all;
}

}  // namespace demi::loop
