#pragma once

#include <c10/core/Device.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "demi/autocast/op_policy.h"
#include "demi/backends/backends.h"
#include "demi/core/export.h"
#include "demi/schedule/lr_schedule.h"
#include "demi/train/every.h"
#include "demi/train/loss.h"
#include "demi/train/network.h"
#include "demi/train/trainer.h"
#include "lab/data/data_sets.h"
#include "lab/models/registry.h"
#include "lab/settings/config.h"
#include "lab/settings/optimizers.h"
#include "lab/settings/run_spec.h"
#include "lab/settings/schedules.h"

namespace demi::settings {

/// A run of a config with its words looked up, once, for reading data, training and testing. The
/// config stays for its numbers, and as what is saved.
struct Resolved {
  Config config;       // of this run alone: its precision, loss scale and parts are those of `spec`
  RunSpec spec;        // precision, loss scale and label of the run
  c10::Device device;  // that it runs on
  const models::ModelInfo* model = nullptr;  // null: the config names none
  const data::DataSet* data = nullptr;       // likewise
  /// Never null.
  const OptimizerKind* optimizer;
  /// Never null.
  const ScheduleKind* schedule;
  train::LossFunction loss;                  // times its weight
  std::optional<OpPolicy> op_policy = {};    // of the file; none without one
  std::vector<std::string> fp32_parts = {};  // of the network, as named
  train::Every checkpoint_every;             // how often a checkpoint is saved
  double stop_after_minutes;                 // since the program's start; 0: never
  Backends backends;                         // LibTorch's settings while it trains
};

/// A run of the config: its precision and loss scale under the name of the precision. Mixed is the
/// device's.
DEMI_API RunSpec run_of(const Config& config, c10::Device device = c10::kCPU);

/// The settings with which that run alone would be trained.
DEMI_API Config config_of(const Config& config, const RunSpec& run);

/// Whether the network computes its loss itself: it is a file, and its output is "loss".
DEMI_API bool has_own_loss(const Config& config);

/// The meaning of its word for the best test result; validation_loss is test_loss.
DEMI_API train::BestBy best_by(const Config& config);

/// LibTorch's settings as the config has them. Not set: FP32's precision if the config has auto,
/// the number of threads if it has 0. cuDNN times no algorithms in a deterministic run.
DEMI_API Backends backends_of(const Config& config);

/// Looks up that run of the config. Throws UsageError with the nearest right name for an unknown
/// word, and as OpPolicy::from_file.
DEMI_API Resolved resolve(const Config& config, const RunSpec& run, c10::Device device = c10::kCPU);
/// The run of its own that the config names.
DEMI_API Resolved resolve(const Config& config, c10::Device device = c10::kCPU);
DEMI_API std::vector<Resolved> resolve(const Config& config, std::span<const RunSpec> runs,
                                       c10::Device device = c10::kCPU);

/// The optimizer over all parameters of the network.
DEMI_API std::shared_ptr<torch::optim::Optimizer> make_optimizer(const Resolved& run,
                                                                 const train::Network& network);

/// The parts of the network compute as the precision's recipe, the op policy and fp32_parts say
/// from now on, of which the later count. Throws UsageError with the nearest name for one that is
/// not there, before anything is changed.
DEMI_API void apply_policy(const Resolved& run, const train::Network& network);

/// Which of the module's weights have a recipe, and which matrices have none: "12 weights in mxfp8,
/// not head.weight". Behind a forward pass weights that no layer multiplies by have none. Empty
/// without a recipe.
DEMI_API std::string layers_in_words(const torch::nn::Module& module);

/// The learning rate by step, or an empty rule for a constant one.
DEMI_API optim::lr::Schedule make_schedule(const Resolved& run, int64_t steps_per_epoch);

/// Momentum or beta1 by step, for a one-cycle schedule; else an empty rule.
DEMI_API optim::lr::Schedule make_momentum_schedule(const Resolved& run, int64_t steps_per_epoch);

/// The options of a run's trainer. Schedules count steps: one for `accumulate` batches.
DEMI_API train::TrainerOptions trainer_options(const Resolved& run, int64_t batches_per_epoch);

}  // namespace demi::settings
