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

/// An observer of the steps. A Callback observes epochs, too.
struct Watcher {
  std::shared_ptr<StepObserver> observer;
  Callback* callback = nullptr;
};

/// The objects that a Trainer trains, and its options. It outlives each fit, so a second fit
/// continues with the scale and the moments of the first.
struct Setup {
  Network network;
  TrainerOptions options;
  Precision precision;
  GradScaler scaler;
  std::optional<EMA> average;
  Ranks ranks = {};
  /// The sharded states, one for each optimizer, if the ranks share them; else none.
  std::vector<std::unique_ptr<distributed::ShardedOptimizerState>> shards = {};
  /// The schedules, one for each optimizer, or none. They are made anew for each fit, which holds
  /// them, too.
  std::vector<std::shared_ptr<optim::lr::Scheduler>> schedules;
  std::list<Watcher> watchers;  // one may add another while they are called
  loop::GraphCounts graphs;     // of the last fit

  /// Whether a fit, or a checkpoint, has set the averages going.
  bool average_is_begun = false;

  /// Makes the schedules anew, at step 0. They begin from the rates that the ones before began
  /// from, or from a rate that somebody else has set since.
  void make_schedules();

  /// Throws UsageError while the averages are in the weights' places.
  void require_weights_in_place() const;

  /// Averages begin as the weights are when the first fit does.
  void begin_average();

  /// If there are several ranks, makes each keep a share of the optimizers' states from here on.
  /// Throws UsageError for an optimizer that is not demi's.
  void shard_optimizers();

  /// Whether an optimizer skips steps for their norm.
  bool has_norm_limit() const;

  /// The objects as a checkpoint and a Step take them.
  loop::Job job();
};

/// The tensors that the optimizers hold beside the module's parameters: learned weights of losses,
/// a temperature.
std::vector<at::Tensor> parameters_elsewhere(const torch::nn::Module& module,
                                             const TrainerOptions& options);

}  // namespace demi::train
