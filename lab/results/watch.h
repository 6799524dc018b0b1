#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <string>

#include "demi/core/export.h"
#include "demi/monitor/monitor.h"
#include "demi/monitor/origin.h"
#include "demi/monitor/recipe_what_if.h"
#include "demi/monitor/what_if.h"
#include "demi/train/callback.h"
#include "demi/train/history.h"
#include "lab/recipes/step_lines.h"
#include "lab/report/event_file.h"
#include "lab/report/metrics_log.h"
#include "lab/report/progress.h"

namespace demi::results {

/// Shows a run as a progress line on a terminal, as plain lines elsewhere.
class DEMI_API ShowProgress : public train::Callback {
 public:
  ShowProgress(std::ostream& out, report::Terminal terminal, c10::Device device,
               report::ProgressOptions options = {});

  /// Names the run that the next calls are about; "" if there is only one. Runs that take turns
  /// each continue where they were.
  void set_run(const std::string& name);

  /// The present run continues after what `history` holds, in steps of so many examples. The next
  /// call is on_epoch_begin, of the epoch that it is in or of the next one.
  void resume(const train::History& history, int64_t step_examples);

  /// Whether the state after the best epoch is kept; an epoch's line reports it.
  void set_keeps_best(bool keeps) { keeps_best_ = keeps; }

  /// Training ends after this optimizer step at the latest; 0: the epochs alone decide.
  void set_last_step(int64_t step) { last_step_ = step; }

  /// Sets the measure of the best epoch.
  void set_best_by(train::BestBy by) { best_by_ = by; }

  /// Also measures the share of training examples whose class is among the k likeliest; 0: does
  /// not.
  void set_top_k(int64_t k) { top_k_ = k; }

  /// Sets the name of the examples, "images", or of the items that each of them holds, "tokens",
  /// and their number.
  void set_items(std::string items, int64_t of_example = 1) {
    items_ = std::move(items);
    items_of_example_ = of_example;
  }

  /// Sets the model's operations for one of those items, and the device's highest rate in a second,
  /// as measured in the present run's precision; 0: not known.
  void set_flops(double of_item, double peak_per_second) {
    flop_of_item_ = of_item;
    peak_per_second_ = peak_per_second;
  }

  bool needs_step(int64_t) override { return top_k_ > 0; }
  void on_epoch_begin(int64_t epoch, int64_t epochs, int64_t steps) override;
  void after_forward(const train::StepView& view, const at::Tensor& output) override;
  void on_step(const train::StepMetrics& step, int64_t examples) override;
  void on_evaluate_begin(int64_t epoch) override;
  void on_epoch_end(const train::EpochRecord& epoch) override;

  void message(const std::string& text) { progress_.message(text); }
  void clear() { progress_.clear(); }

 private:
  struct View {
    report::ProgressState state;
    double seconds = 0;      // of the epoch's steps
    int64_t first_step = 0;  // of the epoch, minus one
    at::Tensor in_top_k;     // of the epoch, examples among the k likeliest, on the device
    int64_t seen = 0;        // of so many
    double loss = 0;         // fading mean, so that the figure can be read
    std::optional<train::Evaluation> best;  // of the tests so far
    bool resumes = false;  // within the epoch of `state`, which on_epoch_begin is to come for
  };

  void begin(View& view) const;
  std::string top_k_text() const;
  report::ProgressState by_item(report::ProgressState state) const;
  void keep_line(const char* phase, double loss, std::optional<double> accuracy, int64_t examples);

  report::Progress progress_;
  std::map<std::string, View> views_;  // by run
  View* view_;                         // of the present one
  std::string items_ = "images";
  int64_t items_of_example_ = 1;
  double flop_of_item_ = 0, peak_per_second_ = 0;
  bool keeps_best_ = false;
  train::BestBy best_by_ = train::BestBy::automatic;
  int64_t top_k_ = 0, last_step_ = 0;
  c10::Device device_;
};

/// Writes each step and each epoch as a line of metrics.jsonl, and as TensorBoard scalars in a
/// folder a run.
class DEMI_API FileMetrics : public train::Callback {
 public:
  explicit FileMetrics(std::filesystem::path folder);

  /// Names the run that the next calls are about: its lines carry the name, its TensorBoard events
  /// go to FOLDER/name. Runs may take turns.
  void set_run(const std::string& name);

  /// The present run continues after what `history` holds: its lines of later steps and epochs are
  /// removed, and those that a crash lost of the earlier ones are written again. Lines of other
  /// runs stay. TensorBoard shows each step once.
  void resume(const train::History& history);

  bool needs_step(int64_t) override { return false; }
  void on_step(const train::StepMetrics& step, int64_t examples) override;
  void on_epoch_end(const train::EpochRecord& epoch) override;
  /// Writes the monitor's record of a step that on_step has reported already: a line a layer and
  /// kind of gradient, histograms, and shares as scalars.
  void write(const monitor::StepHealth& step);
  /// A line about the origin of Inf or NaN in a step that on_step has not reported yet.
  void write(const monitor::Origin& origin);
  /// Lines about the tensors that 16 bits would harm, after the run's last step.
  void write(const monitor::WhatIfResult& result);
  /// Likewise of a recipe.
  void write(const monitor::RecipeWhatIfResult& result);
  void flush();  // all lines and events to the operating system
  /// Flushes, and writes the lines of that run's steps to the disk, of which a checkpoint has the
  /// last ones. Returns the record of these lines.
  recipes::StepLines keep_steps(const std::string& run);

 private:
  struct Lines {
    std::string name;
    std::filesystem::path folder;               // of its events; empty where it was not named
    std::unique_ptr<report::EventFile> events;  // from the first of them on
    int64_t last_step = 0;
    recipes::StepLines steps = {};
  };
  struct Written {  // the last in metrics.jsonl of the present run
    int64_t step = 0, epoch = 0;
    int64_t monitored = 0;  // step
  };

  Written keep_lines(const train::History& history);
  void write(const train::StepMetrics& step);
  void write(const train::EpochRecord& epoch);
  report::EventFile* events();
  void tell(const train::StepMetrics& step);
  void tell(const train::EpochRecord& epoch);
  void tell_monitored_steps(int64_t first);

  std::filesystem::path folder_;
  std::optional<report::MetricsLog> log_;
  std::map<std::string, Lines> runs_;
  Lines* run_;  // the present one
};

}  // namespace demi::results
