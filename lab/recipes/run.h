#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "demi/train/history.h"
#include "demi/train/precision.h"
#include "lab/recipes/config.h"
#include "lab/recipes/workload.h"

namespace demi::train {

/// What a training run does beside training.
struct RunOptions {
  std::filesystem::path folder;  // where weights files go; empty: nothing is kept
  std::string prefix;            // of their names: "fp16-"
  bool keep_best = false;        // best-model.safetensors, written when validation gets better
  bool per_class = false;        // test accuracy of each class
  /// Asked before the first step, after each, and before each batch of an evaluation.
  std::function<bool()> should_stop;
  std::vector<std::shared_ptr<Callback>> callbacks;
};

/// A run and what it came to: one row of the table.
struct RunResult {
  RunSpec spec;
  History history;
  double seconds = 0;                             // of training, all epochs
  double seconds_per_epoch = 0;                   // of training, mean over whole epochs
  double test_loss = 0;                           // of the shipped weights, in the run's precision
  std::optional<double> test_accuracy;            // likewise; none for a regression
  std::optional<double> test_accuracy_fp32_eval;  // of the weights as trained, evaluated in FP32
  int64_t top_k = 0;                              // of test_top_k_accuracy; 0: none
  std::optional<double> test_top_k_accuracy;      // of the shipped weights, as test_accuracy
  std::vector<double> class_accuracy;             // likewise by class, if asked
  int64_t parameters = 0;
  int64_t peak_bytes = 0;           // of tensors while training
  int64_t peak_resident_bytes = 0;  // of the process while training
  int64_t model_bytes = 0;          // of the weights file that one would ship
  int64_t checkpoint_bytes = 0;     // of the file to go on training from
  int64_t skipped_steps = 0;
  /// Of the cores that it asked for, while training (profile::cores_share); none: not known.
  std::optional<double> cores_share;
  int64_t involuntary_switches = 0;  // of all threads, while training
  std::string remark;                // for people, on what is not as it should be; mostly empty
  double speedup = 0;                // the first run's seconds_per_epoch over this one's
};

/// Trains the config's model in the precision of `spec`, writes FOLDER/PREFIXmodel.safetensors
/// (what one would ship) and FOLDER/PREFIXlast.safetensors, and tests the file. Where training ends
/// in an exception, PREFIXlast.safetensors holds what there was after the last step. Caches are
/// emptied and peaks reset before. Throws TrainingError where memory does not suffice, with the
/// batch size that would fit.
DEMI_API RunResult run(const Config& config, const RunSpec& spec, const Workload& workload,
                       c10::Device device, const RunOptions& options);

/// The same in parts, so that several can take turns in one thread: bits, files and peak memory are
/// those of `run`, as long as only `advance` and `finish` of other runs happen between its parts.
/// The workload must outlive it.
class DEMI_API RunInParts {
 public:
  /// Makes the network. `shared_bytes`: what was in use on the device before any of those that take
  /// turns.
  RunInParts(const Config& config, const RunSpec& spec, const Workload& workload,
             c10::Device device, const RunOptions& options, int64_t shared_bytes);
  ~RunInParts();
  RunInParts(RunInParts&&) noexcept;

  /// That many optimizer steps more; false once training is over.
  bool advance(int64_t steps);

  /// Where another run's part has thrown: FOLDER/PREFIXlast.safetensors as far as this one came.
  /// Its own exceptions `advance` answers so itself.
  void keep_last() const;

  /// Writes the files, tests, and gives the memory back.
  RunResult finish();

 private:
  struct Work;
  std::unique_ptr<Work> work_;
};

/// Whether the exception says that memory ran out, of a device or of the host.
DEMI_API bool is_out_of_memory(const std::exception& error);

/// The largest batch size whose training step fits in 80 % of the memory that is free on the
/// device: found by trial steps of two sizes, from which the rest is reckoned, and one trial of the
/// result. At most the number of training examples; of synthetic data, which are made for the batch
/// size, as many as fit in memory beside the step.
DEMI_API int64_t find_batch_size(const Config& config, const RunSpec& spec,
                                 const Workload& workload, c10::Device device);

}  // namespace demi::train
