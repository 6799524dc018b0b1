#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "demi/profile/phase_timer.h"
#include "demi/train/names.h"

namespace demi::train {

/// The measure by which one evaluation is better than another.
enum class BestBy {
  automatic,  // by accuracy if both have one, else by loss
  accuracy,   // the higher is better
  loss,       // the lower is better
};

/// Results of one evaluation.
struct Evaluation {
  double loss = 0;                                      // mean over all examples
  std::optional<double> accuracy;                       // 0 to 1
  std::vector<std::pair<std::string, double>> metrics;  // by name; means over all examples
  /// 0 to 1 by class, NaN for a class without examples. Empty unless asked for.
  std::vector<double> class_accuracy;
  int64_t examples = 0;
  double seconds = 0;  // that it took
  /// The caller ended it early: the results are those of a part of the examples.
  bool stopped = false;

  /// Whether this result is better than the other. A result whose loss is NaN is never better, and
  /// every other result is better than it.
  bool better_than(const Evaluation& other, BestBy by = BestBy::automatic) const {
    if (std::isnan(loss) || std::isnan(other.loss)) return !std::isnan(loss);
    const bool by_accuracy = by != BestBy::loss && accuracy && other.accuracy;
    return by_accuracy ? *accuracy > *other.accuracy : loss < other.loss;
  }
};

/// One pass over the training data.
struct EpochRecord {
  int64_t epoch = 1;               // from 1
  int64_t examples = 0;            // that were trained on
  double loss = 0;                 // mean over the epoch's examples, each at its own step
  std::optional<double> accuracy;  // likewise, 0 to 1
  double seconds = 0;              // of training, without evaluation
  /// `seconds` by phase, in the order of kPhaseNames.
  std::array<double, profile::kPhaseNames.size()> phase_seconds{};
  /// The evaluation after it, if there was one.
  std::optional<Evaluation> validation;
};

/// Everything that a fit recorded.
struct History {
  std::vector<StepMetrics> steps;     // the last ones (TrainerOptions::history_steps), in a row
  std::vector<EpochRecord> epochs;    // those that ended
  int64_t skipped_steps = 0;          // of the whole run
  bool stopped = false;               // the caller ended training early
  std::optional<int64_t> best_epoch;  // by validation; none without validation
  bool early_stopped = false;         // no better validation for early_stopping epochs
  /// Why the result is worthless: the loss stayed NaN or Inf, or ended so. None if training
  /// succeeded.
  std::optional<std::string> failed;
  /// Leaves out steps so that the last `limit` and up to a tenth more remain. Which ones depends on
  /// the number of the last step alone. 0: all remain.
  void forget_all_but(int64_t limit) {
    if (limit == 0 || steps.empty()) return;
    const int64_t at_a_time = std::max<int64_t>(limit / 10, 1);
    const int64_t last = steps.back().step;
    const int64_t before = last - last % at_a_time - limit + 1;
    const auto first = std::ranges::lower_bound(steps, before, {}, &StepMetrics::step);
    steps.erase(steps.begin(), first);
  }
  /// Training time of all epochs.
  double seconds() const {
    double sum = 0;
    for (const EpochRecord& epoch : epochs) sum += epoch.seconds;
    return sum;
  }
};

}  // namespace demi::train
