#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "demi/core/export.h"
#include "demi/distributed/distributed_data_parallel.h"
#include "demi/optim/ema.h"
#include "demi/scaler/grad_scaler.h"
#include "demi/schedule/lr_scheduler.h"

namespace demi::loop {

/// A model, and its name among several. A single model needs no name.
struct NamedModel {
  NamedModel(torch::nn::Module* of) : module(of) {}  // NOLINT(google-explicit-constructor)
  NamedModel(std::string called, torch::nn::Module* of) : name(std::move(called)), module(of) {}
  std::string name;           // in checkpoints and reports; "" of a model alone
  torch::nn::Module* module;  // borrowed; not null
};

/// The objects of a training loop. All are borrowed: they must outlive the objects that are made
/// from a Job.
///
///     demi::loop::Job job{.models = {&*model}, .optimizers = {&adamw}, .scaler = &scaler};
///     demi::loop::Job gan{.models = {{"generator", &*g}, {"critic", &*d}}, ...};
struct Job {
  std::vector<NamedModel> models;  // borrowed; one or more
  /// demi's or any of LibTorch's.
  std::vector<torch::optim::Optimizer*> optimizers = {};
  GradScaler* scaler = nullptr;  // null: losses are not scaled
  /// At most one for each optimizer, in any order; a null stands for an optimizer without one. Each
  /// is stepped in each Step::finish(), after the optimizers, also if its optimizer had no turn or
  /// skipped the step.
  std::vector<optim::lr::Scheduler*> schedules = {};
  /// Updated in Step::finish(): averages of parameters whose optimizers had no turn stay. Null:
  /// none.
  EMA* average = nullptr;
  /// The DistributedDataParallel of each model, if there are several ranks, in the models' order;
  /// null for a model that each rank trains on its own. Empty: this process alone.
  std::vector<distributed::DistributedDataParallel*> parallel = {};
  /// Whether a checkpoint holds the states of LibTorch's random generators: of the CPU and of every
  /// CUDA device that this machine has.
  bool random = true;
  /// Tensors that the optimizers hold beside the models' parameters: learned weights of losses, a
  /// temperature. A checkpoint names them by their place in this list.
  std::vector<at::Tensor> more = {};

  /// The model; of several a module that has them as children under their names, so that
  /// parameters are called "critic.0.weight". Throws UsageError for no model, a null one, two of
  /// one name, and for one of several without a name.
  DEMI_API std::shared_ptr<torch::nn::Module> module() const;
};

}  // namespace demi::loop
