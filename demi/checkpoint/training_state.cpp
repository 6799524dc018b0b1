#include "demi/checkpoint/training_state.h"

#include <torch/types.h>

#include <functional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "demi/checkpoint/model_state.h"
#include "demi/checkpoint/optimizer_state.h"
#include "demi/checkpoint/prepared_state.h"
#include "demi/checkpoint/random_state.h"
#include "demi/checkpoint/run_id.h"
#include "demi/core/error.h"

namespace demi::checkpoint {
namespace {

constexpr std::string_view kAveragePrefix = "average/";

using Actions = std::vector<std::function<void()>>;

void require_model(const TrainingObjects& objects, const char* where) {
  if (!objects.model)
    throw UsageError({.where = where, .what = "there is no model", .accepted = "a module"});
  if (objects.average && objects.average->is_swapped())
    throw UsageError({.where = where,
                      .what = "the averages are in the place of the weights",
                      .advice = "call EMA::swap() first, which brings the weights back"});
}

void require_parameters_of_model(const TrainingObjects& objects) {
  std::unordered_set<const at::TensorImpl*> known;
  for (const at::Tensor& parameter : objects.model->parameters())
    known.insert(parameter.unsafeGetTensorImpl());
  for (std::size_t i = 0; i < objects.optimizers.size(); ++i)
    for (const auto& group : objects.optimizers[i]->param_groups())
      for (const at::Tensor& parameter : group.params())
        if (!known.contains(parameter.unsafeGetTensorImpl()))
          throw UsageError({.where = kCapture,
                            .what = "a parameter of the optimizer is none of the model's",
                            .seen = c10::str("optimizer ", i, ", shape ", parameter.sizes()),
                            .accepted = "one module that holds all parameters",
                            .advice = "register the parameter in the module, or several modules "
                                      "in one"});
}

void prepare_optimizers(Checkpoint& checkpoint, const TrainingObjects& objects, Actions& actions) {
  if (objects.optimizers.empty()) return;
  std::size_t saved = 0;
  while (has_optimizer(checkpoint, part_name("optimizer", saved))) ++saved;
  if (saved != objects.optimizers.size())
    throw UsageError({.where = kRestore,
                      .what = "the checkpoint holds the state of another number of optimizers",
                      .seen = std::to_string(saved),
                      .accepted = std::to_string(objects.optimizers.size()),
                      .advice = saved == 0 ? "weights alone are loaded by load(path, model, device)"
                                           : "make the optimizers that it was saved with"});
  for (std::size_t i = 0; i < saved; ++i)
    actions.push_back(
        prepare_optimizer(checkpoint, part_name("optimizer", i), *objects.optimizers[i]));
}

void prepare_scaler(const Checkpoint& checkpoint, GradScaler* scaler, Actions& actions) {
  if (!scaler || !scaler->is_enabled()) return;
  const auto saved = checkpoint.numbers.find("scaler");
  GradScaler trial(scaler->options());  // with the state that a new one has
  if (saved != checkpoint.numbers.end()) trial.load_state_dict(saved->second);
  actions.push_back([scaler, state = trial.state_dict()] { scaler->load_state_dict(state); });
}

// An average that was not saved starts as the loaded weights do.
void prepare_average(Checkpoint& checkpoint, const TrainingObjects& objects, Actions& actions) {
  EMA* average = objects.average;
  if (!average) return;
  NamedTensors averages = take_part(checkpoint.state, kAveragePrefix);
  if (averages.empty()) averages = checkpoint.model;
  add_further_names(averages, *objects.model);  // an EMA has its averages under all of them
  average->check(averages);
  actions.push_back(
      [average, averages = std::move(averages)]() mutable { average->load(std::move(averages)); });
}

void check_schedules(const Numbers& numbers, const std::vector<optim::lr::Scheduler*>& schedules) {
  for (std::size_t i = 0; i < schedules.size(); ++i)
    if (const auto saved = numbers.find(part_name("schedule", i)); saved != numbers.end())
      schedules[i]->check_state_dict(saved->second);
}

std::function<void()> one_after_another(Actions actions) {
  return [actions = std::move(actions)] {
    for (const auto& action : actions) action();
  };
}

/// Takes what it puts into the objects out of the checkpoint.
void move_into(const TrainingObjects& objects, Checkpoint& checkpoint) {
  const PreparedState prepared = prepare(checkpoint, objects);
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

void load_schedules(const Numbers& numbers, const std::vector<optim::lr::Scheduler*>& schedules) {
  check_schedules(numbers, schedules);
  for (std::size_t i = 0; i < schedules.size(); ++i)
    if (const auto saved = numbers.find(part_name("schedule", i)); saved != numbers.end())
      schedules[i]->load_state_dict(saved->second);
}

Checkpoint capture(const TrainingObjects& objects) {
  require_model(objects, kCapture);
  require_parameters_of_model(objects);
  Checkpoint checkpoint;
  checkpoint.model = tensors_of(*objects.model);
  for (std::size_t i = 0; i < objects.optimizers.size(); ++i)
    capture_optimizer(*objects.optimizers[i], part_name("optimizer", i), checkpoint);
  if (objects.scaler && objects.scaler->is_enabled())
    checkpoint.numbers["scaler"] = objects.scaler->state_dict();
  for (std::size_t i = 0; i < objects.schedules.size(); ++i)
    checkpoint.numbers[part_name("schedule", i)] = objects.schedules[i]->state_dict();
  if (objects.average)
    for (const auto& [name, average] : objects.average->averages())
      checkpoint.state[std::string(kAveragePrefix) + name] = average;
  if (objects.random) checkpoint.state.merge(random_states());
  return checkpoint;
}

PreparedState prepare(Checkpoint& checkpoint, const TrainingObjects& objects) {
  require_model(objects, kRestore);
  const NamedTensors module = tensors_of(*objects.model);
  use_first_names(checkpoint.model, *objects.model);
  check_fits(checkpoint.model, module, "the model");
  check_schedules(checkpoint.numbers, objects.schedules);
  Actions actions;
  actions.push_back([run = checkpoint.run] { take_over_run(run); });
  actions.push_back([numbers = checkpoint.numbers, schedules = objects.schedules] {
    load_schedules(numbers, schedules);
  });
  prepare_optimizers(checkpoint, objects, actions);
  prepare_scaler(checkpoint, objects.scaler, actions);
  prepare_average(checkpoint, objects, actions);
  actions.push_back([module, values = std::exchange(checkpoint.model, {})]() mutable {
    assign(module, std::move(values));
  });
  for (torch::optim::Optimizer* optimizer : objects.optimizers)
    actions.push_back([optimizer] { optimizer->zero_grad(); });
  PreparedState prepared{.objects = one_after_another(std::move(actions)), .random = {}};
  if (objects.random) prepared.random = prepare_random(checkpoint.state);
  return prepared;
}

void restore(const Checkpoint& checkpoint, const TrainingObjects& objects) {
  Checkpoint same_tensors = checkpoint;
  move_into(objects, same_tensors);
}

std::filesystem::path save(const std::filesystem::path& folder, int64_t step,
                           const TrainingObjects& objects, const SaveOptions& options) {
  return save(folder, step, capture(objects), options);
}

Checkpoint load(const std::filesystem::path& path, const TrainingObjects& objects) {
  Checkpoint checkpoint = map(path);
  move_into(objects, checkpoint);
  for (auto& [name, tensor] : checkpoint.state) tensor = tensor.clone();  // out of the file
  return checkpoint;
}

Checkpoint load(const std::filesystem::path& path, torch::nn::Module& model, c10::Device device) {
  Checkpoint checkpoint = map(path);
  use_first_names(checkpoint.model, model);
  check_fits(checkpoint.model, tensors_of(model), "the model");
  model.to(device);
  assign(tensors_of(model), std::exchange(checkpoint.model, {}));
  checkpoint.state.clear();
  return checkpoint;
}

}  // namespace demi::checkpoint
