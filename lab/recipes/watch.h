#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <ostream>
#include <string>

#include "demi/core/export.h"
#include "demi/train/history.h"
#include "lab/report/event_file.h"
#include "lab/report/metrics_log.h"
#include "lab/report/progress.h"

namespace demi::train {

/// Shows a run as a progress line on a terminal, as plain lines elsewhere.
class DEMI_API ShowProgress : public Callback {
 public:
  ShowProgress(std::ostream& out, report::Terminal terminal, c10::Device device);

  /// Names the run that the next calls are about; "" if there is only one. Runs that take turns
  /// each go on where they were.
  void set_run(const std::string& name);

  /// What examples are called: "images".
  void set_items(std::string items) { items_ = std::move(items); }

  void on_epoch_begin(int64_t epoch, int64_t epochs, int64_t steps) override;
  void on_step(const StepMetrics& step, int64_t examples) override;
  void on_evaluate_begin(int64_t epoch) override;
  void on_epoch_end(const EpochRecord& epoch) override;

  void message(const std::string& text) { progress_.message(text); }
  void clear() { progress_.clear(); }

 private:
  struct View {
    report::ProgressState state;
    double seconds = 0;      // of the epoch's steps
    int64_t first_step = 0;  // of the epoch, minus one
    double loss = 0;         // fading mean, so that the figure can be read
  };

  report::Progress progress_;
  std::map<std::string, View> views_;  // by run
  View* view_;                         // of the present one
  std::string items_ = "images";
  c10::Device device_;
};

/// Writes each step and each epoch as a line of metrics.jsonl, and as TensorBoard scalars in a
/// folder a run.
class DEMI_API FileMetrics : public Callback {
 public:
  explicit FileMetrics(std::filesystem::path folder);

  /// Names the run that the next calls are about: its lines carry the name, its TensorBoard events
  /// go to FOLDER/name. Runs may take turns.
  void set_run(const std::string& name);

  void on_step(const StepMetrics& step, int64_t examples) override;
  void on_epoch_end(const EpochRecord& epoch) override;

 private:
  struct Lines {
    std::string name;
    std::unique_ptr<report::EventFile> events;  // none where the run was not named
    int64_t last_step = 0;
  };

  std::filesystem::path folder_;
  report::MetricsLog log_;
  std::map<std::string, Lines> runs_;
  Lines* run_;  // the present one
};

}  // namespace demi::train
