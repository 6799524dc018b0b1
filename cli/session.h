#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/start.h"
#include "cli/stop.h"
#include "demi/checkpoint/folder_lock.h"
#include "demi/distributed/process_group.h"
#include "lab/recipes/compare.h"
#include "lab/report/run_folder.h"
#include "lab/results/layers_report.h"
#include "lab/results/watch.h"
#include "lab/settings/resolved.h"

namespace demi::cli {

/// The part that `train` and `compare` share: the device and the data, the run folder, progress and
/// files while it trains, the report at the end.
class Session : private recipes::RunObserver {
 public:
  /// Throws what load_workload does, and UsageError if another process holds the folder of the
  /// resumed run. `items` of the progress line come from the data. A batch size of auto is found
  /// here.
  explicit Session(Start start);

  c10::Device device() const { return device_; }
  /// Whether this is the rank that makes files and prints; true for a single process.
  bool is_first() const { return !group_ || group_->rank() == 0; }
  const settings::Config& config() const { return config_; }
  /// The run's folder; empty before `compare`, for a dry run, and on ranks other than the first.
  std::filesystem::path folder() const {
    return folder_ ? folder_->path() : std::filesystem::path();
  }

  /// Trains. `runs` empty: the device's default runs; `turn_steps`: of CompareOptions. A dry run
  /// leaves no files. While it runs, a signal is noted until the step in progress has ended, and
  /// SIGUSR1 saves a checkpoint. Throws Exit if a signal came before the first step. `alone`: the
  /// one run of `demi train`, which keeps its best checkpoint, writes checkpoints while it trains
  /// and is tested by class.
  recipes::Comparison compare(std::vector<settings::RunSpec> runs, bool alone,
                              int64_t turn_steps = 0);

  /// The layers of the runs' networks on one batch, after so many steps in FP32.
  results::LayerReport compare_layers(std::vector<settings::RunSpec> runs, int64_t steps);

  /// Writes its report and its result into a run folder, and says where the report is.
  void finish(const results::LayerReport& report);

  /// Writes the report and the result, and prints the report's path. If a signal came, prints the
  /// line that resumes the run instead, and throws Exit.
  void finish(const recipes::Comparison& result);

 private:
  void on_run_begin(const settings::RunSpec& run) override;
  void on_note(const std::string& text) override;
  void on_resume(const settings::RunSpec& run, const train::History& history) override;
  bool should_stop() override;
  int save_requests() override;
  void before_save() override;
  recipes::StepLines keep_steps(const std::string& label) override;
  void on_health(const monitor::StepHealth& step) override;
  void on_origin(const monitor::Origin& origin) override;
  void on_what_if(const monitor::WhatIfResult& result) override;
  void on_recipe_what_if(const monitor::RecipeWhatIfResult& result) override;

  void resolve_config();
  std::shared_ptr<const workload::ModelData> saved_data() const;
  void load_data();
  void say_what_is_left_out() const;
  void find_batch_size(const workload::WorkloadMaker& workload_of);
  void advise_start() const;
  void find_start(const std::vector<settings::Resolved>& runs);
  void open_folder(const recipes::CompareOptions& options);
  void keep_in_folder(recipes::CompareOptions& options, bool alone);
  bool is_trained(const train::History& history) const;
  void say_that_it_resumes(const settings::RunSpec& run, const train::History& history);
  recipes::CompareOptions options_of(std::vector<settings::RunSpec> runs, bool alone,
                                     int64_t turn_steps);
  int ending_code() const;
  void complete(recipes::Comparison& result);
  void tell_folder();
  void remove_unused_folder();
  void say_how_to_resume(std::string_view when = {}) const;

  Start start_;
  settings::Config config_;
  c10::Device device_;
  std::optional<BackendsGuard> backends_;             // a sweep's next comparison has its own
  std::shared_ptr<distributed::ProcessGroup> group_;  // null for one process
  workload::Workload workload_;
  std::shared_ptr<results::ShowProgress> progress_;
  std::optional<report::RunFolder> folder_;
  std::filesystem::path told_folder_;  // rank 0's, on other ranks that see it; else empty
  std::optional<checkpoint::FolderLock> lock_;
  std::shared_ptr<results::FileMetrics> files_;
  std::filesystem::path start_from_;     // what config_.from means; empty: new weights
  std::map<std::string, double> peaks_;  // FLOP/s by run; empty: not measured
  double stop_after_minutes_ = 0;        // 0: never
  bool several_ = false;                 // runs
  int saves_ = 0;                        // that were asked for and begun
  std::optional<NoteStopSignals> noting_;
};

/// Throws TrainingError if training failed in one of the runs. All ranks do, and report it.
void require_success(const std::string& command, const recipes::Comparison& result);

}  // namespace demi::cli
