#pragma once

#include <c10/core/Device.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "demi/autocast/op_policy.h"
#include "demi/backends/backends.h"
#include "demi/core/export.h"
#include "demi/schedule/lr_schedule.h"
#include "demi/train/names.h"
#include "demi/train/network.h"
#include "demi/train/trainer.h"
#include "lab/recipes/config.h"
#include "lab/recipes/run_spec.h"

namespace demi::recipes {

/// The config's optimizer over all parameters of the network. Throws UsageError for an unknown
/// name.
DEMI_API std::shared_ptr<torch::optim::Optimizer> make_optimizer(const Config& config,
                                                                 const train::Network& network);

/// The config's loss, times its weight.
DEMI_API train::LossFunction loss_function_of(const Config& config);

/// What the config's op_policy file says; none without a file. Throws as OpPolicy::from_file.
DEMI_API std::optional<OpPolicy> op_policy_of(const Config& config);

/// The names in the config's fp32_part.
DEMI_API std::vector<std::string> fp32_parts_of(const Config& config);

/// The parts of the network that the config's fp32_part and its op_policy name compute in FP32 from
/// now on. Throws UsageError with the nearest name for one that is not there, before anything is
/// changed, and as op_policy_of.
DEMI_API void keep_in_fp32(const Config& config, const train::Network& network);

/// The learning rate by step, or an empty rule for a constant one. Throws UsageError for an unknown
/// name.
DEMI_API optim::lr::Schedule make_schedule(const Config& config, int64_t steps_per_epoch);

/// Momentum or beta1 by step, for a one-cycle schedule; else an empty rule.
DEMI_API optim::lr::Schedule make_momentum_schedule(const Config& config, int64_t steps_per_epoch);

/// LibTorch's settings as the config has them. Not given: FP32's precision where the config says
/// auto, the number of threads where it says 0. cuDNN times no algorithms in a deterministic run.
DEMI_API Backends backends_of(const Config& config);

/// A run of the config: its precision and loss scale under the name of the precision.
DEMI_API RunSpec run_of(const Config& config);

/// The settings with which that run alone would be trained.
DEMI_API Config config_of(const Config& config, const RunSpec& run);

/// What a trainer is told, for a run of the config as `run` says (config_of). Schedules count
/// steps: of `accumulate` batches one.
DEMI_API train::TrainerOptions trainer_options(const Config& config, const RunSpec& run,
                                               int64_t batches_per_epoch, c10::Device device);

}  // namespace demi::recipes
