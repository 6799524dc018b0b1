#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "cli/stop.h"
#include "lab/recipes/compare.h"
#include "lab/recipes/watch.h"
#include "lab/report/run_folder.h"

namespace demi::cli {

/// What `train` and `compare` share: the device and the data, the run folder, progress and files
/// while it trains, the report at the end.
class RunSession {
 public:
  /// Throws what load_workload does. `items` of the progress line come from the data. A batch size
  /// of auto is found here.
  RunSession(std::string command, std::string recipe, train::Config config);

  c10::Device device() const { return device_; }
  const train::Config& config() const { return config_; }

  /// Trains. `runs` empty: the device's default runs; `turn_steps`: of CompareOptions. Nothing is
  /// kept of a dry run. From here on a signal is noted until the step in progress has ended; throws
  /// Exit if one came before the first step.
  train::Comparison compare(std::vector<train::RunSpec> runs, const std::string& run_dir,
                            const std::string& command_line, bool keep_best,
                            int64_t turn_steps = 0);

  /// Writes the report and says where it is; then throws Exit if a signal came.
  void finish(const train::Comparison& result, const std::string& command_line);

 private:
  void resolve_config();
  void load_data();
  void find_batch_size(const train::WorkloadMaker& workload_of);
  train::Comparison train(const train::CompareOptions& options);
  void say_what_is_kept() const;

  std::string command_, recipe_;
  train::Config config_;
  c10::Device device_;
  train::Workload workload_;
  std::shared_ptr<train::ShowProgress> progress_;
  std::optional<report::RunFolder> folder_;
  std::optional<NoteStopSignals> noting_;
};

/// Throws TrainingError if training failed in one of the runs.
void require_success(const std::string& command, const train::Comparison& result);

}  // namespace demi::cli
