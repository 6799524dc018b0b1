#pragma once

#include <c10/core/Device.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "demi/core/export.h"
#include "demi/data/loader.h"
#include "demi/optim/lr_rule.h"
#include "demi/scaler/scale_rule.h"
#include "demi/train/history.h"
#include "demi/train/loss.h"
#include "demi/train/network.h"
#include "demi/train/precision.h"

namespace demi::train {

struct TrainerOptions {
  int64_t epochs = 1;  // passes over the training data
  Precision precision = parse_precision("fp32");
  LossScale loss_scale;      // automatic: dynamic for fp16, none otherwise
  GradScalerOptions scaler;  // of a dynamic scale
  Loss loss = Loss::cross_entropy;
  double label_smoothing = 0;  // 0 to 1, cross entropy only
  double clip_norm = 0;        // largest L2 norm of all gradients together; 0: no clipping
  int64_t accumulate = 1;      // batches whose gradients are summed for one optimizer step
  c10::Device device = c10::kCPU;
  optim::lr::Rule schedule;  // of the learning rate by optimizer step, from 0; none: it stays
  optim::lr::Rule momentum_schedule;  // likewise, of momentum or beta1
  int64_t read_every = 10;  // steps between two reads of loss, accuracy and scale from the device
  int64_t give_up_after =
      50;  // steps in a row with a loss of NaN or Inf until training ends; 0: never
  bool synchronise_phases =
      false;  // wait for the device between phases: slower, but their split is exact
  std::function<bool()>
      should_stop;  // asked after each step; true ends training with what there is
};

/// An ordinary training loop, in any precision:
///
///     forward in an autocast region, loss in FP32, scaled, backward, unscaled and checked,
///     clipped, optimizer, schedule
///
/// Weights must be on the device already. For a "true" 16-bit or FP64 precision the module is
/// converted when the trainer is made. Not shared between threads.
class DEMI_API Trainer {
 public:
  /// Throws UsageError for options out of their range.
  Trainer(Network network, std::shared_ptr<torch::optim::Optimizer> optimizer,
          TrainerOptions options);

  void add(std::shared_ptr<Callback> callback) { callbacks_.push_back(std::move(callback)); }

  /// Trains, and evaluates on `validation` after each epoch where one is given. Reads the device
  /// every `read_every` steps and not otherwise.
  History fit(const data::Loader& training, const data::Loader* validation = nullptr);

 private:
  struct Run;
  void step(Run& run, const data::Batch& batch, bool last_of_window);
  void read(Run& run);

  Network network_;
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  TrainerOptions options_;
  std::vector<std::shared_ptr<Callback>> callbacks_;
};

/// Loss and accuracy over all of `loader`, in evaluation mode, without gradients, in `precision`.
/// Leaves the module's mode as it was. Synchronises at the end.
DEMI_API Evaluation evaluate(const Network& network, const data::Loader& loader,
                             const Precision& precision, c10::Device device,
                             Loss loss = Loss::cross_entropy);

}  // namespace demi::train
