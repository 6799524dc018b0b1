#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "demi/loop/open_steps.h"
#include "demi/loop/recorder.h"
#include "demi/loop/run_setting.h"
#include "demi/loop/step.h"
#include "demi/loop/step_graphs.h"
#include "demi/loop/turns.h"
#include "demi/optim/batch_norm_guard.h"
#include "demi/tensor/replaced_parameter.h"

namespace demi::loop {

struct Step::Impl final : tensor::ReplacementObserver {
  // What the step is made of.
  const Job job;
  const Options options;
  GradScaler disabled{GradScalerOptions{.enabled = false}};
  RunSetting run;
  std::shared_ptr<torch::nn::Module> module;
  using ParameterSet = std::unordered_set<const at::TensorImpl*>;
  std::vector<ParameterSet> parameters;  // of each model
  std::vector<BatchNormGuard> guards;    // of each model, or none
  std::vector<std::shared_ptr<StepObserver>> observers;
  profile::PhaseTimer timer;
  std::optional<Claim> claim;
  std::optional<LowPrecisionGrads> low_precision;
  bool has_norm_limit = false;  // one of several optimizers has

  // The step that has begun.
  Turns turns;
  at::Tensor last_loss;
  int64_t epoch = 1;
  int64_t batches_begun = 0;  // of the step, for layers with a recipe

  int64_t steps = 0;
  std::optional<Recorder> recorder;

  std::shared_ptr<GraphMemory> graph_memory;
  std::optional<StepGraphs> graphs;
  bool is_watched = false;  // an observer needs the step that is open

  Impl(Job of, const Options& with, const graph::GraphSource& source);
  ~Impl() override;
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void require_replaceable(const tensor::Replacement& replacement) const override;
  void replace(const tensor::Replacement& replacement) override;

  // What the names of a model's parameters and buffers begin with in `module`.
  std::string prefix_of(std::size_t model) const {
    return job.models.size() == 1 ? "" : job.models[model].name + ".";
  }
  int64_t number_of_batch() const;
  bool records() const { return options.read_every > 0 && !observers.empty(); }
  std::vector<at::Tensor> losses_of(const Program& program, const RepeatOptions& how,
                                    profile::PhaseTimer& times);
  void send_back(std::vector<at::Tensor>& losses, const MicroBatch& batch, bool sends,
                 const RepeatOptions& how, profile::PhaseTimer& times);
  at::Tensor loss_of_gradients(const at::Tensor& loss, const MicroBatch& batch) const;
  at::Tensor repeat(const Program& program, const MicroBatch& batch, const RepeatOptions& how);
  std::vector<distributed::DistributedDataParallel*> senders(const MicroBatch& how) const;
  std::vector<at::Tensor> run_watched(const Program& program, const MicroBatch& how);
  Tensors run_given(const Tensors& inputs, const Tensors& targets, const ForwardOf& forward,
                    const ResultsOf& results, const MicroBatch& how);
  at::Tensor run_replayable(const Program& program, const MicroBatch& how, bool begins);
  void begin(const MicroBatch& how, bool remembers = true);
  bool holds_batch(const distributed::DistributedDataParallel* of, const MicroBatch& how) const;
  void end_turn(torch::optim::Optimizer& one);
  StepView view(const std::vector<NamedInput>& inputs, bool ends_step);
  // One may add another.
  template <class Call>
  void each_observer(const Call& call) {
    for (std::size_t i = 0; i < observers.size(); ++i) call(*observers[i]);
  }
  void tell_update(std::vector<StepResult> results);
  template <class Do>
  auto or_drop(const Do& what) {
    try {
      return what();
    } catch (...) {
      drop();
      throw;
    }
  }
  bool clips() const { return options.clip_norm > 0 || options.clip_value > 0; }
  void decide_by_norm(const std::vector<std::size_t>& waiting);
  StepResult step_of(torch::optim::Optimizer& one, bool unscaled = false);
  void put_statistics_back();
  std::vector<StepResult> results_of_all() const;
  void take(const std::vector<std::size_t>& waiting, bool& is_taken);
  std::vector<StepResult> finish();
  void forget();
  void drop();
  void read();
};

}  // namespace demi::loop
