#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>

#include "demi/core/export.h"
#include "demi/profile/core_share.h"
#include "demi/profile/memory.h"
#include "demi/train/network.h"
#include "demi/train/trainer.h"
#include "lab/recipes/asked_what_if.h"
#include "lab/recipes/run.h"
#include "lab/settings/resolved.h"
#include "lab/workload/workload.h"

namespace demi::recipes {

/// A training run, as `run` trains it, in one part or in several, so that runs can take turns in
/// one thread. Bits, files and peak memory are those of `run` if only `advance` and `finish` of
/// other jobs come between the parts. Throws what `run` throws; if memory runs out, the job first
/// releases what it holds. The workload must outlive it.
class DEMI_API Job {
 public:
  /// Makes the network, and resumes. `shared_bytes`: memory in use on the device before the job, or
  /// before the first of those that take turns, which is RunResult::data_bytes and none of the
  /// peak.
  Job(settings::Resolved run, const workload::Workload& workload, JobOptions options,
      int64_t shared_bytes);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Takes that many optimizer steps more, or all; false once training is over.
  bool advance(int64_t steps = std::numeric_limits<int64_t>::max());

  /// Saves a checkpoint after another job has thrown. If `advance` throws, it has saved one itself.
  void save_last();

  /// Writes the files and tests. The job has no result after it.
  RunResult finish();

 private:
  /// Measurements of the run while it trained. A checkpoint holds them, since a process that
  /// resumes the run has not seen the training before it.
  struct Measured {
    int64_t peak_bytes = 0, peak_resident_bytes = 0;
    profile::CoreReadings cores;
  };
  class RandomNumbers;

  static StateDict numbers_of(const Measured& measured);
  static Measured measured_of(const StateDict& numbers);

  /// Releases what the job holds and throws TrainingError with the batch size that would fit, if
  /// memory ran out.
  void say_what_fits(const std::exception& error);
  bool is_first() const { return !options_.group || options_.group->rank() == 0; }
  bool any_rank(bool own) const;
  void begin();
  train::TrainerOptions trainer_options();
  void add_observers();
  std::filesystem::path checkpoint_to_resume() const;
  void resume(const std::filesystem::path& checkpoint);
  std::filesystem::path saved_weights() const;
  void start(torch::optim::Optimizer& optimizer);
  void say_what_changes(const settings::Config& begun, bool keeps_scale) const;
  void add_numbers(checkpoint::Checkpoint& checkpoint);
  void read_earlier(const std::filesystem::path& checkpoint);
  Measured measured();
  void test();

  const settings::Resolved run_;
  const settings::Config& config_ = run_.config;
  const c10::Device device_ = run_.device;
  const workload::Workload& workload_;
  const JobOptions options_;
  RunObserver& observer_;
  RunResult result_;
  train::Network network_;
  std::optional<AskedWhatIf> what_if_;  // none: it was not asked
  std::unique_ptr<RandomNumbers> random_;
  std::optional<train::Trainer> trainer_;
  std::optional<train::Trainer::Parts> parts_;  // none where it was stopped before its first step
  profile::TurnMemory memory_;
  profile::CoreMeter cores_;
  std::optional<StepLines> step_lines_;  // of the checkpoint that was resumed
  Measured before_;                      // of the run's training in other processes
  int64_t peak_resident_bytes_ = 0;
  bool measures_ = false;  // between begin() and end() of memory and cores
};

}  // namespace demi::recipes
