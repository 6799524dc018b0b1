#include "demi/train/setup.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "demi/core/error.h"
#include "demi/optim/optimizer.h"
#include "demi/step/pending_step.h"

namespace demi::train {

void Setup::make_schedules() {
  // All optimizers are asked before one of them is touched.
  for (const auto& optimizer : options.optimizers)
    for (const auto& group : optimizer->param_groups())
      if (options.momentum_schedule)
        optim::lr::set_momentum(*group.options().clone(), options.momentum_schedule(0, 0));
  for (std::size_t i = 0; options.schedule && i < schedules.size(); ++i) {
    const std::vector<double>&base = schedules[i]->base_lrs(), &last = schedules[i]->get_last_lr();
    auto& groups = options.optimizers[i]->param_groups();
    for (std::size_t g = 0; g < std::min(last.size(), groups.size()); ++g)
      if (groups[g].options().get_lr() == last[g]) groups[g].options().set_lr(base[g]);
  }
  schedules.clear();
  if (!options.schedule && !options.momentum_schedule) return;
  for (const auto& optimizer : options.optimizers)
    schedules.push_back(std::make_shared<optim::lr::Scheduler>(*optimizer, options.schedule,
                                                               options.momentum_schedule));
}

loop::Job Setup::job() {
  loop::Job all{.models = {network.module.get()}, .scaler = &scaler};
  for (const auto& optimizer : options.optimizers) all.optimizers.push_back(optimizer.get());
  for (const auto& schedule : schedules) all.schedules.push_back(schedule.get());
  if (average) all.average = &*average;
  if (ranks.are_several()) all.parallel = {ranks.parallel()};
  all.more = parameters_elsewhere(*network.module, options);
  return all;
}

std::vector<at::Tensor> parameters_elsewhere(const torch::nn::Module& module,
                                             const TrainerOptions& options) {
  std::unordered_set<const at::TensorImpl*> seen;
  for (const at::Tensor& parameter : module.parameters())
    seen.insert(parameter.unsafeGetTensorImpl());
  std::vector<at::Tensor> found;
  for (const auto& optimizer : options.optimizers)
    for (const auto& group : optimizer->param_groups())
      for (const at::Tensor& parameter : group.params())
        if (seen.insert(parameter.unsafeGetTensorImpl()).second) found.push_back(parameter);
  return found;
}

void Setup::require_weights_in_place() const {
  if (average && average->is_swapped())
    throw UsageError({.where = "train.Trainer.fit",
                      .what = "the averages are in the weights' places, and would be trained",
                      .accepted = "the weights in their places",
                      .advice = "call swap_average() once more before"});
}

void Setup::begin_average() {
  if (!average || std::exchange(average_is_begun, true)) return;
  average.emplace(*network.module, options.ema_decay);
}

bool Setup::has_norm_limit() const {
  return std::ranges::any_of(options.optimizers, [](const auto& one) {
    auto* ours = dynamic_cast<optim::Optimizer*>(one.get());
    return ours && ours->pending().has_norm_limit();
  });
}

void Setup::shard_optimizers() {
  if (!ranks.are_several()) return;
  for (const auto& optimizer : options.optimizers) {
    auto* ours = dynamic_cast<optim::Optimizer*>(optimizer.get());
    if (!ours)
      throw UsageError({.where = "train.Trainer",
                        .what = "the ranks cannot share the state of this optimizer",
                        .seen = "one of torch::optim's",
                        .accepted = "demi::optim's",
                        .advice = "use one of those, or leave shard_optimizer off"});
    shards.push_back(std::make_unique<distributed::ShardedOptimizerState>(*ours, *ranks.group()));
  }
}

}  // namespace demi::train
