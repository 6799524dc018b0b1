#include "demi/monitor/origin_search.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "demi/checkpoint/random_state.h"
#include "demi/monitor/find_nonfinite.h"
#include "demi/monitor/layers.h"
#include "demi/monitor/op_trace.h"
#include "demi/train/step_view.h"

namespace demi::monitor {
namespace {

using train::StepView;

// Reads each device once.
bool all_finite(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::map<std::string, std::vector<at::Tensor>> extremes;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !tensor.is_floating_point()) continue;
    const at::Tensor values = tensor.is_sparse() ? tensor.coalesce().values() : tensor.detach();
    if (values.numel() == 0) continue;
    const auto [least, greatest] = at::aminmax(values);
    auto& of_device = extremes[tensor.device().str()];
    of_device.push_back(least.to(c10::kDouble));
    of_device.push_back(greatest.to(c10::kDouble));
  }
  for (const auto& [device, numbers] : extremes)
    if (!at::stack(numbers).isfinite().all().item<bool>()) return false;
  return true;
}

std::vector<at::Tensor> gradients_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& p : module.parameters()) gradients.push_back(p.grad());
  return gradients;
}

// What a repeated batch changes: buffers and random numbers.
struct Surroundings {
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers;  // and their copies
  checkpoint::NamedTensors random;

  static Surroundings of(const torch::nn::Module& module) {
    const at::NoGradGuard no_grad;
    Surroundings now;
    for (const at::Tensor& buffer : module.buffers())
      now.buffers.emplace_back(buffer, buffer.detach().clone());
    now.random = checkpoint::random_states();
    return now;
  }
  void put_back() const {
    const at::NoGradGuard no_grad;
    for (const auto& [buffer, copy] : buffers) buffer.detach().copy_(copy);
    checkpoint::NamedTensors states;
    for (const auto& [name, state] : random) states[name] = state.clone();
    if (const auto set = checkpoint::prepare_random(states)) set();
  }
};

// The run is as it was when this was made once it goes: gradients, buffers, random numbers.
class Restored {
 public:
  explicit Restored(const torch::nn::Module& module)
      : parameters_(module.parameters()), now_(Surroundings::of(module)) {
    for (const at::Tensor& p : parameters_) gradients_.push_back(p.grad());
  }
  ~Restored() {
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      parameters_[i].mutable_grad() = gradients_[i];
    now_.put_back();
  }
  Restored(const Restored&) = delete;
  Restored& operator=(const Restored&) = delete;

  // No gradients, and the surroundings of the step's beginning.
  void begin_again(const Surroundings& before) {
    for (const at::Tensor& p : parameters_) p.mutable_grad().reset();
    before.put_back();
  }

 private:
  std::vector<at::Tensor> parameters_, gradients_;
  Surroundings now_;
};

// The ops at the beginning of what spoiled the one with this number.
std::set<std::size_t> beginnings(const std::vector<TracedOp>& ops, std::size_t last) {
  std::set<std::size_t> seen, found;
  std::vector<std::size_t> open{last};
  while (!open.empty()) {
    const std::size_t i = open.back();
    open.pop_back();
    if (i >= ops.size() || !seen.insert(i).second) continue;
    if (ops[i].from.empty() || ops[i].reads_unknown || !ops[i].held.empty()) found.insert(i);
    open.insert(open.end(), ops[i].from.begin(), ops[i].from.end());
  }
  return found;
}

// The outermost op of this one.
const TracedOp& outermost(const std::vector<TracedOp>& ops, const TracedOp& op) {
  const auto found = std::ranges::find_if(
      ops, [&](const TracedOp& other) { return other.serial == op.outermost; });
  return found == ops.end() ? op : *found;
}

// Of ops of the same outermost op the innermost, of those the first.
const TracedOp& innermost(const std::vector<TracedOp>& ops, const TracedOp& op) {
  const TracedOp* best = &op;
  for (const TracedOp& other : ops)
    if (other.outermost == op.outermost && other.starts() && other.depth > best->depth &&
        other.name != "aten::copy_")  // the end of a cast
      best = &other;
  return *best;
}

// The first of them that does not mean it.
const TracedOp* first_of(const std::vector<TracedOp>& ops, const std::set<std::size_t>& numbers) {
  const TracedOp* first = nullptr;
  for (const bool also_meant : {false, true}) {
    for (const std::size_t i : numbers)
      if ((also_meant || !ops[i].on_purpose) && (!first || ops[i].serial < first->serial))
        first = &ops[i];
    if (first) return first;
  }
  return nullptr;
}

std::set<std::size_t> all_beginnings(const std::vector<TracedOp>& ops) {
  std::set<std::size_t> numbers;
  for (std::size_t i = 0; i < ops.size(); ++i)
    if (ops[i].from.empty() && ops[i].depth == 0) numbers.insert(i);
  return numbers;
}

std::string name_of_layer(const Layers& layers, int layer) {
  return layer < 0 ? "" : layers.all()[static_cast<std::size_t>(layer)].name;
}

void name_op(Origin& origin, const std::vector<TracedOp>& ops, const TracedOp& found,
             const Layers& layers, bool in_backward) {
  if (!found.held.empty()) {
    const std::string& held = found.held.front();
    const bool is_batch = held.starts_with("batch ");
    origin.place = is_batch ? Origin::Place::data : Origin::Place::state;
    origin.name = is_batch ? held.substr(6) : held;
    return;
  }
  const TracedOp& outer = outermost(ops, found);
  const TracedOp& inner = innermost(ops, found);
  origin.place = in_backward ? Origin::Place::backward : Origin::Place::forward;
  origin.op = in_backward ? inner.name : outer.name;
  if (in_backward)
    origin.inner = inner.function;
  else if (inner.serial != outer.serial)
    origin.inner = inner.name;
  origin.name = name_of_layer(layers, outer.layer);
  origin.reads_weights = outer.reads_weights;
  origin.inputs = inner.inputs;
}

}  // namespace

struct OriginSearch::Impl {
  explicit Impl(Tell to) : tell(std::move(to)) {}

  Tell tell;
  std::optional<Surroundings> before;
  bool found_in_step = false;
  bool weights_were_finite = true;
  bool began = false;
  bool told_loss_scale = false;
  std::set<std::string> told;

  Origin search(const StepView& view, Restored& run) const;
  void add_trials(Origin& origin, const StepView& view, Restored& run) const;
  void say(const Origin& origin);
};

// Each place once.
void OriginSearch::Impl::say(const Origin& origin) {
  constexpr std::size_t kMost = 20;
  if (origin.is_loss_scale() && std::exchange(told_loss_scale, true)) return;
  const std::string key = std::to_string(static_cast<int>(origin.place)) + " " + origin.name + " " +
                          origin.op + " " + origin.inner;
  if (told.size() >= kMost || !told.insert(key).second) return;
  tell(origin);
}

Origin OriginSearch::Impl::search(const StepView& view, Restored& run) const {
  const torch::nn::Module& module = *view.network.module;
  const Layers layers(module);
  std::vector<std::pair<std::string, at::Tensor>> held{{"batch input", view.batch.input},
                                                       {"batch target", view.batch.target}};
  for (const auto& p : module.named_parameters())
    held.emplace_back("parameter " + p.key(), p.value());
  for (const auto& b : module.named_buffers()) held.emplace_back("buffer " + b.key(), b.value());
  Origin origin{.epoch = view.epoch, .step = view.step};
  run.begin_again(*before);
  OpTrace trace(layers, std::move(held));
  const at::Tensor loss = view.repeat(
      {.before_backward = [&](const at::Tensor& scaled) { trace.begin_backward(scaled); }});
  if (!all_finite({loss})) {
    const auto& ops = trace.forward();
    const auto numbers = trace.loss() ? beginnings(ops, *trace.loss()) : all_beginnings(ops);
    if (const TracedOp* first = first_of(ops, numbers)) name_op(origin, ops, *first, layers, false);
  } else {
    const auto& ops = trace.backward();
    if (const TracedOp* first = first_of(ops, all_beginnings(ops)))
      name_op(origin, ops, *first, layers, true);
    else
      origin.place = Origin::Place::backward;
  }
  return origin;
}

void OriginSearch::Impl::add_trials(Origin& origin, const StepView& view, Restored& run) const {
  const bool mixed = view.precision.is_mixed(), scaled = view.scaler.is_enabled();
  std::vector<Origin::Trial> trials;
  if (mixed) trials.push_back({.autocast = false, .scaler = scaled});
  if (scaled) trials.push_back({.autocast = mixed, .scaler = false});
  if (mixed && scaled) trials.push_back({.autocast = false, .scaler = false});
  for (Origin::Trial& trial : trials) {
    run.begin_again(*before);
    const at::Tensor loss = view.repeat({.autocast = trial.autocast, .scaler = trial.scaler});
    trial.loss_is_finite = all_finite({loss});
    trial.gradients_are_finite = all_finite(gradients_of(*view.network.module));
    // What a run without a region or without a scaler has in any case.
    if (!mixed) trial.autocast = true;
    origin.trials.push_back(trial);
  }
}

OriginSearch::OriginSearch(Tell tell) : impl_(std::make_unique<Impl>(std::move(tell))) {}
OriginSearch::~OriginSearch() = default;

void OriginSearch::before_forward(const StepView& view) {
  Impl& impl = *impl_;
  if (!std::exchange(impl.began, true))
    impl.weights_were_finite = all_finite(view.network.module->parameters());
  impl.before = Surroundings::of(*view.network.module);
}

void OriginSearch::after_backward(const StepView& view) {
  Impl& impl = *impl_;
  if (impl.found_in_step) return;  // a window's gradients stay spoiled
  std::vector<at::Tensor> numbers = gradients_of(*view.network.module);
  numbers.push_back(view.loss);
  if (all_finite(numbers)) return;
  impl.found_in_step = true;
  Origin origin;
  {
    Restored run(*view.network.module);
    origin = impl.search(view, run);
    const bool is_held =
        origin.place == Origin::Place::data || origin.place == Origin::Place::state;
    if (!is_held) impl.add_trials(origin, view, run);
  }
  impl.say(origin);
}

void OriginSearch::after_update(const StepView& view) {
  Impl& impl = *impl_;
  const bool was_found = std::exchange(impl.found_in_step, false);
  const torch::nn::Module& module = *view.network.module;
  const bool finite = all_finite(module.parameters());
  if (finite || !std::exchange(impl.weights_were_finite, finite) || was_found) return;
  Origin origin{.epoch = view.epoch, .step = view.step, .place = Origin::Place::update};
  std::vector<torch::optim::Optimizer*> optimizers;
  for (const auto& optimizer : view.optimizers) optimizers.push_back(optimizer.get());
  for (const NonFinite& found : find_nonfinite(module, optimizers)) {
    if (found.role != Role::parameter && found.role != Role::moment) continue;
    if (origin.name.empty()) origin.name = found.name;
    origin.nonfinite.push_back(to_string(found));
  }
  impl.say(origin);
}

}  // namespace demi::monitor
