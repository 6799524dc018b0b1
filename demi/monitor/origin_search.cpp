#include "demi/monitor/origin_search.h"

#include <torch/types.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "demi/monitor/find_nonfinite.h"
#include "demi/monitor/find_origin.h"
#include "demi/monitor/forward_watch.h"
#include "demi/monitor/moments.h"
#include "demi/monitor/repeated_batch.h"

namespace demi::monitor {
namespace {

using loop::StepView;

// The tensors that outlive a step.
std::vector<at::Tensor> state_of(const StepView& view) {
  std::vector<at::Tensor> all = view.module.parameters();
  for (const at::Tensor& buffer : view.module.buffers()) all.push_back(buffer);
  for (torch::optim::Optimizer* optimizer : view.optimizers)
    for (const Moment& moment : moments_of(*optimizer)) all.push_back(moment.value);
  return all;
}

// Gradients are another question.
std::vector<NonFinite> nonfinite_state(const StepView& view) {
  std::vector<NonFinite> found = find_nonfinite(view.module, view.optimizers);
  std::erase_if(found, [](const NonFinite& one) { return one.role == Role::gradient; });
  return found;
}

// A scale that is halved so often without a finite step is not found soon.
constexpr std::int64_t kPatience = 10;

}  // namespace

struct OriginSearch::Impl {
  explicit Impl(Report to) : report(std::move(to)) {}

  Report report;
  std::optional<Surroundings> before;
  ForwardWatch forward;
  bool found_in_step = false;
  bool began = false;
  bool found_loss_scale = false;
  std::optional<Origin> harmless;  // an overflow by a dynamic scale alone: reported after a fault
  std::set<std::string> reported;
  std::set<std::string> meant;  // ops of forward whose Inf or NaN is no fault, or is reported
  // Tensors with Inf or NaN, by name_of(), that are reported, follow from a reported one, or are
  // meant to hold it.
  std::set<std::string> held;
  // Parameters that hold it at the step's beginning, or whose moments do.
  std::set<std::string> spoiled_parameters;

  bool is_spoiled(ForwardWatch& watch) const;
  void add_trials(Origin& origin, const StepView& view, RepeatGuard& run);
  void find(const StepView& view, const std::vector<std::string>& spoiled, bool vanishes);
  void look_before(const StepView& view, bool is_known);
  void say(const Origin& origin);
  void say_harmless();
};

// Each place once.
void OriginSearch::Impl::say(const Origin& origin) {
  constexpr std::size_t kMost = 20;
  const std::string key = std::to_string(static_cast<int>(origin.place)) + " " + origin.name + " " +
                          origin.op + " " + origin.inner;
  if (reported.size() >= kMost || !reported.insert(key).second) return;
  report(origin);
  say_harmless();
}

void OriginSearch::Impl::say_harmless() {
  if (harmless) report(*std::exchange(harmless, std::nullopt));
}

bool OriginSearch::Impl::is_spoiled(ForwardWatch& watch) const {
  return std::ranges::any_of(watch.spoiled(),
                             [&](const std::string& op) { return !meant.contains(op); });
}

void OriginSearch::Impl::add_trials(Origin& origin, const StepView& view, RepeatGuard& run) {
  const bool mixed = view.precision.is_mixed(), scaled = view.scaler.is_enabled();
  std::vector<Origin::Trial> trials;
  if (mixed) trials.push_back({.autocast = false, .scaler = scaled});
  if (scaled && !origin.vanishes) trials.push_back({.autocast = mixed, .scaler = false});
  if (mixed && scaled) trials.push_back({.autocast = false, .scaler = false});
  for (Origin::Trial& trial : trials) {
    run.begin_again(*before);
    ForwardWatch watch;
    loop::RepeatOptions how{.autocast = trial.autocast, .scaler = trial.scaler};
    if (origin.vanishes) {
      watch.begin();
      how.after_forward = [&](const at::Tensor&) { watch.end(); };
    }
    const at::Tensor loss = view.repeat(how);
    trial.loss_is_finite = all_finite({loss});
    trial.gradients_are_finite = all_finite(gradients_of(view.module));
    trial.values_are_finite = !is_spoiled(watch);
    // A trial of a run without a region switches none off.
    if (!mixed) trial.autocast = true;
    origin.trials.push_back(trial);
  }
}

void OriginSearch::Impl::find(const StepView& view, const std::vector<std::string>& spoiled,
                              bool vanishes) {
  std::optional<Origin> origin;
  {
    RepeatGuard run(view.module);
    origin = find_origin(view, run, *before);
    if (!origin && !vanishes)  // it does not repeat
      origin = Origin{.epoch = view.epoch, .step = view.step, .place = Origin::Place::backward};
    if (origin &&
        (origin->place == Origin::Place::forward || origin->place == Origin::Place::backward))
      add_trials(*origin, view, run);
  }
  if (vanishes) meant.insert(spoiled.begin(), spoiled.end());
  if (!origin) return;
  const bool is_parameter = origin->name.starts_with(name_of(Role::parameter));
  if (origin->place == Origin::Place::state && is_parameter && held.contains(origin->name)) return;
  if (!origin->is_loss_scale()) return say(*origin);
  if (std::exchange(found_loss_scale, true)) return;
  const bool backs_off = view.scaler.options().mode != ScaleMode::kStatic;
  const bool waits = backs_off && reported.empty();
  if (waits)
    harmless = origin;
  else
    say(*origin);
}

// Looks for what the program loaded, or wrote between two steps. No op of forward reads a moment,
// and the step that reads it spreads it to the weight. `is_known`: what a step that was dropped has
// left is that step's, whose origin was reported.
void OriginSearch::Impl::look_before(const StepView& view, bool is_known) {
  const bool is_first = !std::exchange(began, true);
  spoiled_parameters.clear();
  if (held.empty() && all_finite(state_of(view))) return;
  Origin origin{.epoch = view.epoch, .step = view.step, .place = Origin::Place::state};
  for (const NonFinite& found : nonfinite_state(view)) {
    if (found.role != Role::buffer) spoiled_parameters.insert(found.name);
    if (!held.insert(name_of(found)).second) continue;
    // A buffer may hold -Inf from the beginning, as a mask does.
    if (is_first && found.role == Role::buffer && found.nans == 0) continue;
    if (origin.name.empty()) origin.name = name_of(found);
    origin.nonfinite.push_back(to_string(found));
  }
  if (!is_known && !origin.nonfinite.empty()) say(origin);
}

OriginSearch::OriginSearch(Report report) : impl_(std::make_unique<Impl>(std::move(report))) {}
OriginSearch::~OriginSearch() = default;

void OriginSearch::before_forward(const StepView& view) {
  Impl& impl = *impl_;
  if (view.begins_step || !impl.began)
    impl.look_before(view, std::exchange(impl.found_in_step, false));
  impl.before = Surroundings::of(view.module);
  impl.forward.begin();
}

void OriginSearch::after_forward(const StepView&, const at::Tensor&) { impl_->forward.end(); }

void OriginSearch::after_backward(const StepView& view) {
  Impl& impl = *impl_;
  const std::vector<std::string> spoiled = impl.forward.spoiled();
  if (impl.found_in_step) return;  // a window's gradients stay spoiled
  std::vector<at::Tensor> numbers = gradients_of(view.module);
  numbers.push_back(view.loss);
  const bool is_finite = all_finite(numbers);
  impl.found_in_step = !is_finite;
  const auto is_new = [&](const std::string& op) { return !impl.meant.contains(op); };
  if (!is_finite || std::ranges::any_of(spoiled, is_new)) impl.find(view, spoiled, is_finite);
}

void OriginSearch::after_update(const StepView& view) {
  Impl& impl = *impl_;
  const bool was_found = std::exchange(impl.found_in_step, false);
  if (impl.harmless && (!was_found || view.step >= impl.harmless->step + kPatience))
    impl.say_harmless();
  if (impl.held.empty() && all_finite(state_of(view))) return;
  Origin update{.epoch = view.epoch, .step = view.step, .place = Origin::Place::update};
  Origin buffer{.epoch = view.epoch, .step = view.step, .place = Origin::Place::buffer};
  for (const NonFinite& found : nonfinite_state(view)) {
    if (!impl.held.insert(name_of(found)).second) continue;
    if (found.role != Role::buffer && impl.spoiled_parameters.contains(found.name)) continue;
    Origin& origin = found.role == Role::buffer ? buffer : update;
    if (origin.name.empty()) origin.name = found.name;
    origin.nonfinite.push_back(to_string(found));
  }
  if (was_found) return;
  for (const Origin& origin : {buffer, update})
    if (!origin.nonfinite.empty()) impl.say(origin);
}

}  // namespace demi::monitor
