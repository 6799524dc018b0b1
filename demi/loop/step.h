#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "demi/autocast/op_policy.h"
#include "demi/core/export.h"
#include "demi/loop/graph_mode.h"
#include "demi/loop/job.h"
#include "demi/loop/observer.h"
#include "demi/loop/precision.h"
#include "demi/profile/phase_timer.h"
#include "demi/step/step_result.h"

namespace demi::graph {
class GraphSource;
}

namespace demi::loop {

class GraphMemory;
class Recorder;

/// How a Step computes, clips, reads and reports.
struct Options {
  /// Not given: that of demi::set_global_policy when the Step is made, which is fp32 by default. A
  /// "true" 16-bit or FP64 precision converts the models. A mixed global policy of the same format
  /// makes softmax FP32 in each batch while it holds, unless there is an op_policy.
  std::optional<Precision> precision = std::nullopt;
  c10::Device device = c10::kCPU;  // of the region
  /// Which op runs in what in the region of a mixed run. Not given: as in a region that names no
  /// policy.
  std::optional<OpPolicy> op_policy = std::nullopt;
  /// Batches whose gradients are summed for one optimizer step. Each loss is divided by it, also in
  /// a step of fewer batches.
  int64_t accumulate = 1;
  /// Largest L2 norm of an optimizer's gradients together, and largest absolute value of one. 0: no
  /// clipping.
  double clip_norm = 0, clip_value = 0;
  /// The running statistics of a model's normalisation layers go back to what they were before the
  /// step's first batch, if all optimizers that hold its parameters skip the step (BatchNormGuard),
  /// and if the step is dropped. Copies them once a step.
  bool guard_statistics = false;
  /// demi's optimizers have gradients of 16 bits while the Step lives
  /// (StepOptions::low_precision_grads): nobody but it comes between backward and step. They stay
  /// scaled there; StepView::gradient gives FP32.
  bool low_precision_grads = true;
  /// Steps between two reads of the device; observers hear of the steps then. 0: no step is
  /// recorded or read.
  int64_t read_every = 10;
  /// Steps taken before; numbering continues from here.
  int64_t steps_taken = 0;
  /// Records the batches that are given with their tensors (Step::batch of inputs and targets), and
  /// finish(). The first three steps of each kind run plainly on a stream of their own; what makes
  /// another kind: shapes and dtypes of the tensors, MicroBatch::weight, the place of a batch among
  /// those of its step (first, second, later), train and eval of a module, requires_grad, an
  /// address of a parameter or buffer, backends, policies, the weight cache's mode. At most 16 are
  /// kept.
  /// Rates and other numbers of parameter groups, loss scale and weights may change between two
  /// steps. A step runs plainly if an observer needs it, with MicroBatch::of, after take(), and
  /// with several losses. Needs demi's optimizers, a CUDA device, LibTorch 2.15, and no other
  /// ranks.
  GraphMode graph = GraphMode::off;
  /// true: the host waits for the device between phases, which is slower, but splits the time
  /// between them exactly.
  bool synchronise_phases = false;
};

/// One batch of a step.
struct MicroBatch {
  /// Only their parameters get gradients. Empty: those of all optimizers that were not taken in
  /// this step.
  std::vector<torch::optim::Optimizer*> of = {};
  std::vector<NamedInput> inputs = {};  // for observers, which name the one that is at fault
  bool last = false;  // ends the step, or the turn of `of`, with fewer batches than `accumulate`
  double weight = 1;  // factor of the losses
  int64_t epoch = 1;  // the number that observers are given, from 1
};

/// One training step in mixed precision:
///
///     forward in an autocast region, loss in FP32, scaled, backward, unscaled and checked,
///     clipped, optimizer, average, scaler, schedules
///
/// watched by whoever asks for it: monitor::Monitor, OriginSearch, WhatIf, or an observer of yours.
///
///     demi::loop::Step step({.models = {&*model}, .optimizers = {&adamw}, .scaler = &scaler},
///                           {.accumulate = 4, .clip_norm = 1});
///     for (const auto& [x, y] : data) {
///       step.batch([&] { return model->forward(x); },
///                  [&](const at::Tensor& out) { return cross_entropy(out, y); });
///       if (step.is_due()) step.finish();
///     }
///
/// The plain calls (Autocast, GradScaler, demi::backward, optim::clip_grad_norm_), written out in
/// this order with gradients of 16 bits, give the same bits. With several ranks nothing is sent
/// before the last batch of a step, and an Inf or NaN on one rank skips the step on all. An
/// exception of forward, loss, backward or an observer drops the step's gradients; the next batch
/// begins a new step. One thread.
class DEMI_API Step {
 public:
  /// Called in the region, and again where an observer repeats the batch.
  using Forward = std::function<at::Tensor()>;
  /// Called outside of the region, with the output, in FP32 if it is 16-bit. Gives one number.
  using Loss = std::function<at::Tensor(const at::Tensor& output)>;
  /// Forward and all losses together, in the region. Each loss has a backward of its own.
  using Losses = std::function<std::vector<at::Tensor>()>;

  /// Throws UsageError for an option out of its range, for a model, optimizer or scaler that is
  /// missing or held by another Step, for an optimizer with a parameter that is none of the models'
  /// and not in Job::more, and for two schedules of one optimizer.
  explicit Step(Job job, Options options = {});
  /// A Step with graphs of another source than the machine's, for tests. `graphs` outlives it.
  Step(Job job, Options options, const graph::GraphSource& graphs);
  ~Step();  // drop()
  Step(Step&&) noexcept;
  Step& operator=(Step&&) noexcept;

  /// Forward and backward of one batch. Returns the loss, (), unscaled and without a graph. Throws
  /// UsageError for a loss that is not one floating point number on a graph.
  at::Tensor batch(const Forward& forward, const Loss& loss, const MicroBatch& how = {}) {
    return run({.forward = &forward, .loss = &loss}, how).front();
  }
  std::vector<at::Tensor> batch(const Losses& losses, const MicroBatch& how = {}) {
    return run({.losses = &losses}, how);
  }
  /// The tensors of a batch. Some may be undefined.
  using Tensors = std::vector<at::Tensor>;
  /// A Forward that is given the tensors of the batch.
  using ForwardOf = std::function<at::Tensor(const Tensors& inputs)>;
  /// A Loss that is given the tensors of the batch.
  using LossOf = std::function<at::Tensor(const at::Tensor& output, const Tensors& targets)>;
  /// Takes a batch that can be recorded (Options::graph): it is then copied to where the graph
  /// reads it. Forward and loss have to do the same work each time: what else they read are
  /// the model's tensors and such as stay the same objects. They are not called for a step that is
  /// replayed. Without MicroBatch::inputs observers get "input" and "target", numbered from the
  /// second on. Throws UsageError for a tensor of another device, if the step may be recorded.
  at::Tensor batch(const Tensors& inputs, const Tensors& targets, const ForwardOf& forward,
                   const LossOf& loss, const MicroBatch& how = {});
  /// The loss first, and behind it what else the batch is to give: right answers, a second metric.
  /// These may be undefined.
  using ResultsOf = std::function<Tensors(const at::Tensor& output, const Tensors& targets)>;
  /// Takes such a batch, and returns all results, without graphs, in memory of their own.
  Tensors batch(const Tensors& inputs, const Tensors& targets, const ForwardOf& forward,
                const ResultsOf& results, const MicroBatch& how = {});
  /// Takes part in the other ranks' step without a batch of this rank's own. `how.last` is as in
  /// batch(). The reported loss does not count it: the loss of a step of such calls alone is NaN.
  void pass(const MicroBatch& how = {});

  /// The gradients of a loss on a graph, without the loss scale, in the loss's dtype: for penalties
  /// within a loss. Undefined where the loss does not depend on a tensor. They are computed of the
  /// scaled loss, so that they do not underflow.
  std::vector<at::Tensor> gradients(const at::Tensor& loss, const std::vector<at::Tensor>& of);

  /// Whether the batches of a step are there: those without MicroBatch::of count.
  bool is_due() const;

  /// Unscale, clip and step of this optimizer now, before finish(): the turns of a GAN. Its
  /// gradients are gone after it. Throws UsageError for one that was taken in this step, or that
  /// had no batch.
  StepResult take(torch::optim::Optimizer& one);
  /// Takes an optimizer that evaluates its loss several times (LBFGS). Observers hear of each
  /// evaluation as of a batch. The optimizer gets the loss that the gradients are of: with its
  /// weight, divided by `accumulate`, and of several ranks the mean; so does the result's loss().
  /// Every rank has a batch. Throws UsageError with clipping.
  StepResult take(torch::optim::Optimizer& one, const Forward& forward, const Loss& loss,
                  const MicroBatch& how = {});
  /// Takes the optimizers that had a batch and were not taken, then average, scaler, schedules, and
  /// no gradients. The results are in the optimizers' order, without those that had no batch.
  /// Throws UsageError without a batch.
  std::vector<StepResult> finish();

  /// Gradients and everything else of a step that is not finished are gone. What was taken, stays.
  void drop();
  /// Whether a step has begun and is not finished.
  bool is_open() const;
  /// The running statistics before the first batch of the step that has begun, by the module's
  /// name of the buffer. Empty without Options::guard_statistics and between two steps.
  std::map<std::string, at::Tensor> statistics() const;
  /// Reopens a step that was saved between two of its batches, of which it had `batches`, for all
  /// optimizers: they count for is_due(). The caller has restored its gradients.
  void reopen(const std::map<std::string, at::Tensor>& statistics, int64_t batches = 0);

  /// Observers hear of every finished step. Waits for the device.
  void read();

  /// It hears of all batches from now on.
  void watch(std::shared_ptr<StepObserver> observer);

  /// An input as the models take it: in a precision that is not mixed floating point has the
  /// weights' dtype; in a mixed one FP64 becomes FP32, since a region casts all but FP64.
  at::Tensor input(const at::Tensor& from) const;
  const Precision& precision() const;
  /// Optimizer steps of the run so far, Options::steps_taken included.
  int64_t steps_taken() const;
  /// The time since the Step was made, by phase. What lies between two calls counts as `other`:
  /// enter another phase here.
  profile::PhaseTimer& phases();
  using GraphCounts = loop::GraphCounts;  // the name that it had here first
  /// What has become of Options::graph: replays are of batches and of finish(). Waits for nothing.
  GraphCounts graph_counts() const;
  /// What its graphs share with others that are replayed between its steps.
  std::shared_ptr<GraphMemory> graph_memory();
  /// The records of the steps, for loops that count more of a batch than its loss.
  Recorder& recorder();

 private:
  /// The work of a batch: an output and its loss, or all losses at once.
  struct Program {
    const Forward* forward = nullptr;
    const Loss* loss = nullptr;
    const Losses* losses = nullptr;
  };
  std::vector<at::Tensor> run(const Program& program, const MicroBatch& how);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace demi::loop
