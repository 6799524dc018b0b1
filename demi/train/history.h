#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "demi/profile/phase_timer.h"

namespace demi::train {

/// One optimizer step.
struct StepRecord {
  int64_t epoch = 1;               // from 1
  int64_t step = 0;                // of the whole run, from 1
  double loss = 0;                 // mean over the batch; NaN where it was not a number
  std::optional<double> accuracy;  // of the batch, 0 to 1
  double learning_rate = 0;        // of the first parameter group, used in this step
  std::optional<double>
      loss_scale;           // that this step's loss was multiplied by; none without a scaler
  bool skipped = false;     // Inf or NaN among the gradients: nothing was changed
  double seconds = 0;       // from the end of the step before, reading and callbacks included
  double data_seconds = 0;  // of these, waited for data. Both of the host
};

struct Evaluation {
  double loss = 0;                                      // mean over all examples
  std::optional<double> accuracy;                       // 0 to 1
  std::vector<std::pair<std::string, double>> metrics;  // by name; means over all examples
  std::vector<double> class_accuracy;  // 0 to 1 by class, NaN for one without examples; if asked
  int64_t examples = 0;
  double seconds = 0;
  bool stopped = false;  // ended early because the caller asked for it: of a part of the examples

  /// Whether this is a better result: by accuracy where there is one, else by loss. One whose loss
  /// is NaN never is, and every other one is better than that.
  bool better_than(const Evaluation& other) const {
    if (std::isnan(loss) || std::isnan(other.loss)) return !std::isnan(loss);
    return accuracy && other.accuracy ? *accuracy > *other.accuracy : loss < other.loss;
  }
};

struct EpochRecord {
  int64_t epoch = 1;
  int64_t examples = 0;
  double loss = 0;                 // mean over the epoch's examples, as they were met
  std::optional<double> accuracy;  // likewise
  double seconds = 0;              // of training; evaluation apart
  std::array<double, profile::kPhaseNames.size()>
      phase_seconds{};  // their split, in the order of kPhaseNames
  std::optional<Evaluation> validation;
};

struct History {
  std::vector<StepRecord> steps;
  std::vector<EpochRecord> epochs;
  int64_t skipped_steps = 0;
  bool stopped = false;               // ended early because the caller asked for it
  std::optional<int64_t> best_epoch;  // by validation; none without validation
  bool early_stopped = false;         // no better validation for early_stopping epochs
  std::optional<std::string>
      failed;  // why the result is worth nothing: the loss stayed NaN or Inf, or ended so
  double seconds() const {
    double sum = 0;
    for (const EpochRecord& epoch : epochs) sum += epoch.seconds;
    return sum;
  }
};

/// Told of everything that happens in a run, in the thread that trains. Steps are told of a few at
/// a time, when the device has been read anyway.
class Callback {
 public:
  virtual ~Callback() = default;
  virtual void on_epoch_begin(int64_t /*epoch*/, int64_t /*epochs*/, int64_t /*steps*/) {}
  virtual void on_step(const StepRecord&, int64_t /*examples_so_far_in_epoch*/) {}
  virtual void on_evaluate_begin(int64_t /*epoch*/) {}
  virtual void on_epoch_end(const EpochRecord&) {}
};

}  // namespace demi::train
