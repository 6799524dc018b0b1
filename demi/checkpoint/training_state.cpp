#include "demi/checkpoint/training_state.h"

#include <torch/types.h>

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "demi/checkpoint/prepared_state.h"
#include "demi/checkpoint/run_id.h"
#include "demi/core/error.h"
#include "demi/loop/job_schedules.h"
#include "demi/loop/open_steps.h"

namespace demi::checkpoint {
namespace {

constexpr std::string_view kAveragePrefix = "average/";
constexpr std::string_view kMorePrefix = "more/";

using Actions = std::vector<std::function<void()>>;
using Schedules = std::vector<loop::JobSchedule>;

void require_weights(const loop::Job& job, const char* where) {
  if (job.average && job.average->is_swapped())
    refuse({.where = where,
            .what = "the averages are in the place of the weights",
            .advice = "call EMA::swap() first, which brings the weights back"});
}

void require_known_parameters(const loop::Job& job, const torch::nn::Module& model) {
  std::unordered_set<const at::TensorImpl*> known;
  for (const at::Tensor& parameter : model.parameters())
    known.insert(parameter.unsafeGetTensorImpl());
  for (const at::Tensor& one : job.more) known.insert(one.unsafeGetTensorImpl());
  for (std::size_t i = 0; i < job.optimizers.size(); ++i)
    for (const auto& group : job.optimizers[i]->param_groups())
      for (const at::Tensor& parameter : group.params())
        if (!known.contains(parameter.unsafeGetTensorImpl()))
          refuse({.where = kCapture,
                  .what = "a parameter of the optimizer is none of the model's",
                  .seen = c10::str("optimizer ", i, ", shape ", parameter.sizes()),
                  .accepted = "parameters of Job::models, or tensors of Job::more",
                  .advice = "name the parameter in Job::more, or register it in a module"});
}

/// The tensors that the optimizers hold beside the model, under the names that parameter_names()
/// gives them.
NamedTensors more_of(const loop::Job& job) {
  NamedTensors all;
  for (std::size_t i = 0; i < job.more.size(); ++i) all[std::to_string(i)] = job.more[i].detach();
  return all;
}

/// Prepares Job::more. Checkpoints of older versions do not hold it: it then keeps its values.
void prepare_more(Checkpoint& checkpoint, const loop::Job& job, Actions& actions) {
  if (job.more.empty()) return;
  NamedTensors saved = take_part(checkpoint.state, kMorePrefix);
  if (saved.empty()) return;
  const NamedTensors more = more_of(job);
  check_fits(saved, more, "Job::more");
  check_range(saved, more);
  actions.push_back([more, saved = std::move(saved)]() mutable { assign(more, std::move(saved)); });
}

/// Returns whether the parameter groups are those that were saved.
bool prepare_optimizers(Checkpoint& checkpoint, const loop::Job& job,
                        const torch::nn::Module& model, Actions& actions) {
  if (job.optimizers.empty()) return true;
  std::size_t saved = 0;
  while (has_optimizer(checkpoint, part_name("optimizer", saved))) ++saved;
  if (saved != job.optimizers.size())
    refuse({.where = kRestore,
            .what = "the checkpoint holds the state of another number of optimizers",
            .seen = std::to_string(saved),
            .accepted = std::to_string(job.optimizers.size()),
            .advice = saved == 0 ? "weights alone are loaded by load(path, model, device)"
                                 : "make the optimizers that it was saved with"});
  bool same_groups = true;
  for (std::size_t i = 0; i < saved; ++i) {
    const std::string part = part_name("optimizer", i);
    const ParameterMatch match =
        match_parameters(checkpoint, part, *job.optimizers[i], model, job.more);
    actions.push_back(prepare_optimizer(checkpoint, part, *job.optimizers[i], match));
    same_groups &= match.same_groups;
  }
  return same_groups;
}

void prepare_scaler(const Checkpoint& checkpoint, GradScaler* scaler, Actions& actions) {
  if (!scaler || !scaler->is_enabled()) return;
  const auto saved = checkpoint.numbers.find("scaler");
  GradScaler trial(scaler->options());  // with the state that a new one has
  if (saved != checkpoint.numbers.end()) trial.load_state_dict(saved->second);
  actions.push_back([scaler, state = trial.state_dict()] { scaler->load_state_dict(state); });
}

// `actions` load the model's weights: an average that was not saved starts as they are then, of
// whatever part of the models it is.
void prepare_average(Checkpoint& checkpoint, EMA* average, const torch::nn::Module& model,
                     Actions& actions) {
  if (!average) return;
  NamedTensors averages = take_part(checkpoint.state, kAveragePrefix);
  if (averages.empty()) {
    actions.push_back([average] { average->restart(); });
    return;
  }
  add_further_names(averages, model);  // an EMA has its averages under all of them
  average->check(averages);
  actions.push_back(
      [average, averages = std::move(averages)]() mutable { average->load(std::move(averages)); });
}

/// Calls visit(schedule, its saved state) for those that were saved.
template <class Visit>
void each_schedule(const Numbers& numbers, const Schedules& schedules, bool keeps_rates,
                   const Visit& visit) {
  for (const auto& [optimizer, schedule] : schedules) {
    const auto saved = numbers.find(part_name("schedule", optimizer));
    if (saved == numbers.end()) continue;
    StateDict state = saved->second;
    if (keeps_rates) {
      std::erase_if(state, [](const auto& item) { return item.first.starts_with("base_lrs."); });
      state.merge(schedule->state_dict());
    }
    visit(*schedule, state);
  }
}

void check_schedules(const Numbers& numbers, const Schedules& schedules, bool keeps_rates) {
  each_schedule(numbers, schedules, keeps_rates,
                [](const auto& schedule, const auto& state) { schedule.check_state_dict(state); });
}

// The run's steps: those that the first optimizer has counted, if it is one of demi's, or those by
// whose number the checkpoint was saved.
int64_t steps_taken(const Checkpoint& checkpoint) {
  const auto taken = checkpoint.state.find("optimizer/taken");
  const bool is_counted = taken != checkpoint.state.end();
  return std::max(checkpoint.step, is_counted ? taken->second.item<int64_t>() : 0);
}

// Warns of schedules that begin at step 0: the checkpoint may be another program's, or that of a
// run without schedules.
void warn_of_schedules_that_begin(const Checkpoint& checkpoint, const Schedules& schedules,
                                  int64_t taken) {
  for (const auto& [optimizer, schedule] : schedules) {
    const std::string part = part_name("schedule", optimizer);
    if (taken > 0 && !checkpoint.numbers.contains(part) &&
        schedule->state_dict().at("last_epoch") == 0) {
      TORCH_WARN("[", kRestore, "] the checkpoint holds no schedule: ", part,
                 " begins at its step 0, in a run that has taken ", taken,
                 "; save it with the schedule (Job::schedules; in ",
                 "Python demi_checkpoint.save(..., scheduler=scheduler)), or step() it so often");
    }
  }
}

std::function<void()> one_after_another(Actions actions) {
  return [actions = std::move(actions)] {
    for (const auto& action : actions) action();
  };
}

/// Takes what it puts into the objects out of the checkpoint.
void move_into(const loop::Job& job, Checkpoint& checkpoint) {
  const PreparedState prepared = prepare(checkpoint, job);
  prepared.objects();
  if (prepared.random) prepared.random();
}

}  // namespace

NamedTensors take_part(NamedTensors& all, std::string_view prefix) {
  NamedTensors part;
  auto it = all.lower_bound(std::string(prefix));
  while (it != all.end() && it->first.starts_with(prefix)) {
    part.emplace(it->first.substr(prefix.size()), std::move(it->second));
    it = all.erase(it);
  }
  return part;
}

std::string part_name(const char* kind, std::size_t index) {
  return index == 0 ? kind : std::string(kind) + "." + std::to_string(index);
}

void load_schedules(const Numbers& numbers, const loop::Job& job, bool keeps_rates) {
  const Schedules schedules = loop::schedules_of(job, kRestore);
  check_schedules(numbers, schedules, keeps_rates);
  each_schedule(numbers, schedules, keeps_rates,
                [](auto& schedule, const auto& state) { schedule.load_state_dict(state); });
}

Checkpoint capture(const loop::Job& job) {
  loop::require_no_open_step(job, kCapture);
  return capture_within_step(job);
}

Checkpoint capture_within_step(const loop::Job& job) {
  const auto model = job.module();
  require_weights(job, kCapture);
  require_known_parameters(job, *model);
  Checkpoint checkpoint;
  checkpoint.model = named_tensors(*model);
  for (std::size_t i = 0; i < job.optimizers.size(); ++i)
    capture_optimizer(*job.optimizers[i], part_name("optimizer", i), *model, job.more, checkpoint);
  for (const auto& [name, one] : more_of(job))
    checkpoint.state[std::string(kMorePrefix) + name] = one;
  if (job.scaler && job.scaler->is_enabled())
    checkpoint.numbers["scaler"] = job.scaler->state_dict();
  for (const auto& [optimizer, schedule] : loop::schedules_of(job, kCapture))
    checkpoint.numbers[part_name("schedule", optimizer)] = schedule->state_dict();
  if (job.average)
    for (const auto& [name, average] : job.average->averages())
      checkpoint.state[std::string(kAveragePrefix) + name] = average;
  if (job.random) checkpoint.state.merge(random_states());
  return checkpoint;
}

PreparedState prepare(Checkpoint& checkpoint, const loop::Job& job) {
  const auto model = job.module();
  require_weights(job, kRestore);
  const NamedTensors module = named_tensors(*model);
  use_first_names(checkpoint.model, *model);
  check_fits(checkpoint.model, module, "the model");
  Actions actions, optimizers;
  const Schedules schedules = loop::schedules_of(job, kRestore);
  const int64_t taken = steps_taken(checkpoint);
  const bool keeps_options = !prepare_optimizers(checkpoint, job, *model, optimizers);
  check_range(checkpoint.model, module);
  check_schedules(checkpoint.numbers, schedules, keeps_options);
  warn_of_schedules_that_begin(checkpoint, schedules, taken);
  actions.push_back([run = checkpoint.run] { take_over_run(run); });
  actions.push_back([numbers = checkpoint.numbers, job, keeps_options] {
    load_schedules(numbers, job, keeps_options);
  });
  for (auto& action : optimizers) actions.push_back(std::move(action));
  prepare_more(checkpoint, job, actions);
  prepare_scaler(checkpoint, job.scaler, actions);
  actions.push_back([module, values = std::exchange(checkpoint.model, {})]() mutable {
    assign(module, std::move(values));
  });
  prepare_average(checkpoint, job.average, *model, actions);
  for (torch::optim::Optimizer* optimizer : job.optimizers)
    actions.push_back([optimizer] { optimizer->zero_grad(); });
  PreparedState prepared{.objects = one_after_another(std::move(actions)),
                         .random = {},
                         .keeps_options = keeps_options};
  if (job.random) prepared.random = prepare_random(checkpoint.state);
  return prepared;
}

void restore(const Checkpoint& checkpoint, const loop::Job& job) {
  Checkpoint same_tensors = checkpoint;
  move_into(job, same_tensors);
}

std::filesystem::path save(const std::filesystem::path& folder, int64_t step, const loop::Job& job,
                           const SaveOptions& options) {
  return save(folder, step, capture(job), options);
}

Checkpoint load(const std::filesystem::path& path, const loop::Job& job) {
  Checkpoint checkpoint = map(path);
  move_into(job, checkpoint);
  for (auto& [name, tensor] : checkpoint.state) tensor = tensor.clone();  // out of the file
  return checkpoint;
}

Checkpoint load(const std::filesystem::path& path, torch::nn::Module& model, c10::Device device) {
  Checkpoint checkpoint = map(path);
  use_first_names(checkpoint.model, model);
  check_fits(checkpoint.model, named_tensors(model), "the model");
  check_range(checkpoint.model, named_tensors(model));
  model.to(device);
  assign(named_tensors(model), std::exchange(checkpoint.model, {}));
  checkpoint.state.clear();
  return checkpoint;
}

}  // namespace demi::checkpoint
