#pragma once

#include <c10/core/Device.h>
#include <torch/optim/optimizer.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "demi/autocast/op_policy.h"
#include "demi/backends/backends.h"
#include "demi/checkpoint/checkpoint.h"
#include "demi/core/export.h"
#include "demi/data/loader.h"
#include "demi/distributed/distributed_data_parallel.h"
#include "demi/distributed/process_group.h"
#include "demi/loop/step.h"
#include "demi/optim/ema.h"
#include "demi/scaler/scale_rule.h"
#include "demi/schedule/lr_schedule.h"
#include "demi/train/callback.h"
#include "demi/train/checkpoint_options.h"
#include "demi/train/evaluate.h"
#include "demi/train/history.h"
#include "demi/train/loss.h"
#include "demi/train/metric.h"
#include "demi/train/names.h"
#include "demi/train/network.h"

namespace demi::train {

struct ResumePoint;
class Fit;
struct Setup;

/// Options of a Trainer.
struct TrainerOptions {
  /// Passes over the training data.
  int64_t epochs = 1;
  /// Training ends after that many optimizer steps. 0: by epochs alone.
  int64_t max_steps = 0;
  /// The precision of the run. Default: that of demi::set_global_policy when the Trainer is made,
  /// which is fp32 unless set. As loop::Options::precision.
  std::optional<Precision> precision = std::nullopt;
  /// false: a mixed run keeps loss scaling but runs in FP32, to find out which of the two causes a
  /// problem.
  bool autocast = true;
  /// The dtypes that ops run in, in the region of a mixed run. Default: as in a region without a
  /// policy. Its parts of the model are applied by demi::apply(policy, module).
  std::optional<OpPolicy> op_policy = std::nullopt;
  /// Automatic: dynamic for fp16, none otherwise.
  LossScale loss_scale = {};
  /// The rule of a dynamic loss scale.
  GradScalerOptions scaler = {};
  LossFunction loss = Loss::cross_entropy;
  /// 0 to 1, cross entropy only.
  double label_smoothing = 0;
  /// Computes the forward pass and all losses of a step, in place of `loss`, for models with
  /// several outputs and optimizers. Called in the region; each loss is scaled and sent back, then
  /// every optimizer steps.
  std::function<std::vector<at::Tensor>(const Network&, const data::Batch&)> losses = {};
  /// Computed in validation, beside loss and accuracy.
  std::vector<Metric> metrics = {};
  /// Largest L2 norm of an optimizer's gradients together. 0: no clipping.
  double clip_norm = 0;
  /// Factor with which the gradient's L2 norm is added to the loss. 0: none.
  double gradient_penalty = 0;
  /// Batches whose gradients are summed for one optimizer step.
  int64_t accumulate = 1;
  /// Decay of an average of the weights, which validation uses. 0: no average.
  double ema_decay = 0;
  /// Training ends after that many epochs without a better validation. 0: never.
  int64_t early_stopping = 0;
  /// The measure of the best validation, for early_stopping, History::best_epoch and the
  /// checkpoints that are kept as the best.
  BestBy best_by = BestBy::automatic;
  /// The device of the model, to which its batches are moved. One GPU of several by its number.
  c10::Device device = c10::kCPU;
  /// The optimizers. None: demi::optim::Adam over all parameters with a learning rate of 0.001.
  std::vector<std::shared_ptr<torch::optim::Optimizer>> optimizers = {};
  /// Learning rate by optimizer step, counted from 0. None: it stays.
  optim::lr::Schedule schedule = {};
  /// Momentum, or beta1, by optimizer step. None: it stays.
  optim::lr::Schedule momentum_schedule = {};
  /// Steps between two reads of loss, accuracy and scale from the device.
  int64_t read_every = 10;
  /// Number of the last steps in History::steps and in checkpoints. Up to a tenth more are held:
  /// the earliest are dropped a tenth at a time. 0: all.
  int64_t history_steps = 10'000;
  /// Bad steps in a row until training ends: steps with a loss of NaN or Inf, or skipped ones if
  /// nothing scales the loss. 3 are enough if the first step of all is among them, and a loss of
  /// NaN or Inf at the very end fails the run too. 0: never.
  int64_t give_up_after = 50;
  /// true: the host waits for the device between phases, which is slower, but splits the time
  /// between them exactly.
  bool synchronise_phases = false;
  /// Whether a step's work on a GPU is recorded once and replayed (loop::Options::graph), and that
  /// of a validation's batch, too (Evaluator). Batches are drawn there if the loader's set lies on
  /// the device (data::Loader::choice). A step is run plainly if a callback or observer needs it
  /// (StepObserver::needs_step, which is true unless overridden), with `losses`, and if lengths lie
  /// on the CPU.
  loop::GraphMode graph = loop::GraphMode::off;
  /// Whether subnormal numbers count as 0 on a CPU (demi/core/flush_subnormals.h).
  bool flush_subnormals = true;
  /// LibTorch's settings during a fit; afterwards they are as before. Settings of FP32's precision
  /// that are not given follow the precision of the run: TF32 is allowed in `tf32` alone.
  Backends backends = {};
  /// Asked after each batch and before each batch of validation. true: training ends with the
  /// weights and figures so far. With several ranks it is asked after each step; true on one rank
  /// ends training on all.
  std::function<bool()> should_stop = {};
  /// The run's checkpoints, from which Trainer::resume resumes it. None without a folder.
  CheckpointOptions checkpoints = {};
  /// Asked after each batch, if there is a folder of checkpoints. true: one is saved now, and
  /// training goes on. With several ranks rank 0 is asked, after each step: between the batches of
  /// a step each rank has gradients of its own.
  std::function<bool()> should_save = {};
  /// Several processes that train one model, each on its part of the data
  /// (data::OrderOptions::rank): gradients are averaged, losses and metrics are totals over all
  /// ranks, every rank skips the same steps and ends at the same one, and rank 0 alone saves
  /// checkpoints. All ranks resume from the same one. None: this process alone.
  std::shared_ptr<distributed::ProcessGroup> group = {};
  /// Options of averaging gradients and comparing weights. With uneven_batches the ranks' loaders
  /// may have different numbers of batches: a rank without one takes the step of the others, and
  /// the average is over those that have one. Otherwise all loaders must have equally many.
  distributed::DistributedOptions distributed = {};
  /// Whether each of several ranks keeps the moments and fp32 masters of its share of the
  /// parameters alone (distributed::ShardedOptimizerState). All optimizers must be demi's. Rank 0
  /// saves the state of all, which every rank sends to it: between two steps, and not after an
  /// exception.
  bool shard_optimizer = false;
};

/// Inputs x (N, ...) and targets y (N, ...).
struct TensorPair {
  at::Tensor x = {}, y = {};  // (N, ...) and (N, ...)
};

/// Options of a fit on tensors.
struct FitOptions {
  int64_t epochs = 1;          // passes over the tensors
  int64_t batch_size = 32;     // 1 or more
  bool shuffle = true;         // another order every epoch
  uint64_t seed = 0;           // of the order
  TensorPair validation = {};  // undefined: no validation
};

/// The number of optimizer steps of so many batches. The last step may have fewer than `accumulate`
/// batches.
DEMI_API int64_t steps_of(int64_t batches, int64_t accumulate);

/// An ordinary training loop, in any precision:
///
///     forward in an autocast region, loss in FP32, scaled, backward, unscaled and checked,
///     clipped, optimizer, schedule
///
/// Weights must be on the device already; batches are moved there (data/to_device.h). With a "true"
/// 16-bit or FP64 precision the constructor converts the module. One thread at a time.
class DEMI_API Trainer {
 public:
  /// Throws UsageError for options out of their range.
  Trainer(Network network, TrainerOptions options);
  Trainer(Network network, std::shared_ptr<torch::optim::Optimizer> optimizer,
          TrainerOptions options);

  ~Trainer();
  Trainer(Trainer&&) noexcept;
  Trainer& operator=(Trainer&&) noexcept;

  /// A trainer of a module holder (torch::nn::Sequential, torch::nn::Linear, one of yours).
  template <class Holder>
  requires requires(Holder model) { model.ptr(); }
  explicit Trainer(Holder model, TrainerOptions options = {})
      : Trainer(train::network(std::move(model)), std::move(options)) {}

  /// The precision in which it trains: that of the options, else the global one at construction.
  const Precision& precision() const;

  /// Adds an observer of the steps of all fits from now on; a Callback observes epochs, too.
  void add(std::shared_ptr<StepObserver> observer);

  /// Loads a checkpoint of another Trainer's run, as checkpoint::load finds it: weights,
  /// optimizers, scaler, averages and schedules now. The next `fit` or Parts begins where that run
  /// stood, with its random numbers, and takes the steps that it would have taken, bit for bit,
  /// with the same model, options, data, number of threads, instruction set and LibTorch. Its
  /// history begins with that run's records, and its callbacks receive the later ones. Options may
  /// differ as checkpoint::restore describes; `epochs`, `max_steps` and the steps of a schedule
  /// that the run did not have before count from the start of that run. Memory grows by at most one
  /// tensor beyond what training needs anyway. Throws DataError as checkpoint::load, UsageError if
  /// something does not fit, and then nothing is changed.
  void resume(const std::filesystem::path& path);
  /// Loads a checkpoint in memory. Its tensors are copied.
  void resume(const checkpoint::Checkpoint& from);

  /// Trains, and evaluates on `validation` after each epoch if it is given. Reads the device every
  /// `read_every` steps, after step 3 of a run that may be given up, at the end of an epoch, and
  /// for a checkpoint. Loss scale, moments and averages continue from an earlier fit; schedules
  /// begin anew. Throws what loaders, callbacks and schedules throw, and UsageError or
  /// TrainingError as checkpoint::Writer does; history() then has the steps that were taken.
  History fit(const data::Loader& training, const data::Loader* validation = nullptr);

  /// Trains on tensors. They are copied to the device, or shared if they are there already. With
  /// several ranks each passes all rows, and trains on its part of them: batch_size is that of a
  /// rank.
  History fit(const at::Tensor& x, const at::Tensor& y, const FitOptions& fit = {});

  /// A fit in parts, so that several trainers can take turns in one thread. The steps are those of
  /// one call of `fit`, bit for bit. Settings of the process that a fit changes (subnormals,
  /// Backends) hold during `advance` only. The caller keeps LibTorch's random numbers of the
  /// trainers apart. Trainer and loaders must outlive this object.
  class DEMI_API Parts {
   public:
    Parts(Trainer& trainer, const data::Loader& training, const data::Loader* validation = nullptr);
    Parts(Trainer& trainer, const data::Loader& training, const data::Loader* validation,
          int64_t epochs);
    ~Parts();
    Parts(const Parts&) = delete;
    Parts& operator=(const Parts&) = delete;

    /// Takes that many optimizer steps more, with the validations between them; fewer if training
    /// ends before. Waits for the device. False once training is over.
    bool advance(int64_t steps);

    /// The history so far. Between two parts, steps since the last read of the device are missing;
    /// after an exception of `advance`, none are.
    const History& history() const;

    /// Steps of a resumed run that its checkpoint did not hold (CheckpointOptions::history_steps)
    /// come before those of the history. Throws UsageError if they do not end right before them.
    void add_earlier(std::vector<StepMetrics> steps);

    /// The state between two parts, from which Trainer::resume resumes. Its tensors are those of
    /// model and optimizers: the next part changes them. If training was stopped within an epoch,
    /// the run resumes in that epoch. Waits for the device and calls the callbacks for every step.
    /// With shard_optimizer all ranks call it, rank 0 alone gets the state, and the others get an
    /// empty one: save it to resume from it.
    checkpoint::Checkpoint checkpoint();

   private:
    std::unique_ptr<Fit> fit_;
  };

  /// The history of the last call of fit, also if it ended in an exception (of the loader, the
  /// schedule, a callback). The weights are then those of the last step.
  const History& history() const { return history_; }

  /// What has become of TrainerOptions::graph in the last fit, or until now in that of a Parts.
  loop::GraphCounts graph_counts() const;

  /// Exchanges weights and averages; a second call exchanges them back. Does nothing if ema_decay
  /// is 0.
  void swap_average();

  /// The parameters by name, as they are trained: for 16-bit weights the FP32 numbers that demi's
  /// optimizers keep, not their rounding; the averages if ema_decay is set, with the buffers that
  /// belong to them. Tensors are detached; those of FP32 weights are the module's own. A collective
  /// with shard_optimizer.
  std::map<std::string, at::Tensor> trained_weights() const;

 private:
  /// Takes what it loads out of the checkpoint.
  void take_from(checkpoint::Checkpoint& from);
  History fit_epochs(const data::Loader& training, const data::Loader* validation, int64_t epochs);

  std::unique_ptr<Setup> setup_;
  std::unique_ptr<ResumePoint> resume_point_;  // of the next fit
  History history_;
};

}  // namespace demi::train

namespace demi {
using train::Trainer;
using train::TrainerOptions;
}  // namespace demi
