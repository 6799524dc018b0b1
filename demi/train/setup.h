#pragma once

#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "demi/distributed/sharded_optimizer_state.h"
#include "demi/loop/job.h"
#include "demi/optim/ema.h"
#include "demi/scaler/grad_scaler.h"
#include "demi/schedule/lr_scheduler.h"
#include "demi/train/ranks.h"
#include "demi/train/trainer.h"

namespace demi::train {

/// Who hears of the steps, and if it is a Callback, of epochs too.
struct Watcher {
  std::shared_ptr<StepObserver> observer;
  Callback* callback = nullptr;
};

/// What a Trainer trains, and with what. It outlives each fit, so a second one goes on with the
/// scale and the moments of the first.
struct Setup {
  Network network;
  TrainerOptions options;
  Precision precision;
  GradScaler scaler;
  std::optional<EMA> average;
  Ranks ranks = {};
  /// One an optimizer, if the ranks share their states; else none.
  std::vector<std::unique_ptr<distributed::ShardedOptimizerState>> shards = {};
  /// One an optimizer, or none; each fit has its own, and keeps them.
  std::vector<std::shared_ptr<optim::lr::Scheduler>> schedules;
  std::list<Watcher> watchers;  // one may add another while they are called

  /// Whether a fit, or a checkpoint, has set the averages going.
  bool average_is_begun = false;

  /// Makes the schedules anew, at step 0. They begin from the rates that the ones before began
  /// from, or from a rate that somebody else has set since.
  void make_schedules();

  /// Throws UsageError while the averages are in the weights' places.
  void require_weights_in_place() const;

  /// Averages begin as the weights are when the first fit does.
  void begin_average();

  /// If there are several ranks: each keeps a share of the optimizers' states from here on. Throws
  /// UsageError for an optimizer that is not demi's.
  void shard_optimizers();

  /// Whether an optimizer skips steps for their norm.
  bool has_norm_limit() const;

  /// As a checkpoint and a Step see it.
  loop::Job job();
};

/// What the optimizers hold beside the module's parameters: learned weights of losses, a
/// temperature.
std::vector<at::Tensor> parameters_elsewhere(const torch::nn::Module& module,
                                             const TrainerOptions& options);

}  // namespace demi::train
