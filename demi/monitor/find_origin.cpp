#include "demi/monitor/find_origin.h"

#include <algorithm>
#include <exception>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "demi/monitor/layers.h"
#include "demi/monitor/op_trace.h"

namespace demi::monitor {
namespace {

using Ops = std::vector<TracedOp>;

// The ops at the beginning of what spoiled the one with this number.
std::set<std::size_t> beginnings(const Ops& ops, std::size_t last) {
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

std::set<std::size_t> all_beginnings(const Ops& ops) {
  std::set<std::size_t> numbers;
  for (std::size_t i = 0; i < ops.size(); ++i)
    if (ops[i].from.empty() && ops[i].depth == 0) numbers.insert(i);
  return numbers;
}

// The outermost op that this one ran in.
const TracedOp& outermost(const Ops& ops, const TracedOp& op) {
  const auto found = std::ranges::find_if(
      ops, [&](const TracedOp& other) { return other.serial == op.outermost; });
  return found == ops.end() ? op : *found;
}

// The innermost op in which an Inf or NaN starts, of those with this op's outermost op; the first
// of several.
const TracedOp& innermost(const Ops& ops, const TracedOp& op) {
  const TracedOp* best = &op;
  for (const TracedOp& other : ops)
    if (other.outermost == op.outermost && other.starts() && other.depth > best->depth &&
        other.name != "aten::copy_")  // the end of a cast
      best = &other;
  return *best;
}

const TracedOp* first_of(const Ops& ops, const std::set<std::size_t>& numbers, bool on_purpose) {
  const TracedOp* first = nullptr;
  for (const std::size_t i : numbers)
    if (ops[i].on_purpose == on_purpose && (!first || ops[i].serial < first->serial))
      first = &ops[i];
  return first;
}

// The first of these ops that does not make an Inf or NaN on purpose, else the first.
const TracedOp* first_of(const Ops& ops, const std::set<std::size_t>& numbers) {
  const TracedOp* first = first_of(ops, numbers, false);
  return first ? first : first_of(ops, numbers, true);
}

std::string name_of_layer(const Layers& layers, int layer) {
  return layer < 0 ? "" : layers.all()[static_cast<std::size_t>(layer)].name;
}

void name_op(Origin& origin, const Ops& ops, const TracedOp& found, const Layers& layers,
             bool in_backward) {
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
  else if (inner.name != outer.name)
    origin.inner = inner.name;
  origin.forward_op = in_backward ? inner.forward_op : outer.name;
  origin.name = name_of_layer(layers, outer.layer);
  origin.reads_weights = outer.reads_weights;
  origin.inputs = inner.inputs;
}

std::vector<std::pair<std::string, at::Tensor>> tensors_before(const loop::StepView& view) {
  std::vector<std::pair<std::string, at::Tensor>> held;
  for (const auto& [name, tensor] : view.inputs) held.emplace_back("batch " + name, tensor);
  const torch::nn::Module& module = view.module;
  for (const auto& p : module.named_parameters())
    held.emplace_back("parameter " + p.key(), p.value());
  for (const auto& b : module.named_buffers()) held.emplace_back("buffer " + b.key(), b.value());
  return held;
}

// LibTorch's messages continue with a stack trace.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

std::optional<Origin> find_origin(const loop::StepView& view, RepeatGuard& run,
                                  const Surroundings& before, loop::RepeatOptions how) {
  const torch::nn::Module& module = view.module;
  const Layers layers(module);
  Origin origin{.epoch = view.epoch, .step = view.step};
  run.begin_again(before);
  OpTrace trace(layers, tensors_before(view));
  how.before_backward = [&](const at::Tensor& scaled) { trace.begin_backward(scaled); };
  at::Tensor loss;
  try {
    loss = view.repeat(how);
  } catch (const std::exception& error) {
    const TracedOp& failed = trace.failed();
    const bool in_backward = trace.is_in_backward();
    origin.place = in_backward ? Origin::Place::backward : Origin::Place::forward;
    origin.op = failed.name;
    origin.inner = failed.function;
    origin.forward_op = in_backward ? failed.forward_op : failed.name;
    origin.name = name_of_layer(layers, failed.layer);
    origin.reads_weights = failed.reads_weights;
    origin.refusal = first_line(error.what());
    return origin;
  }
  if (!all_finite({loss})) {
    const Ops& ops = trace.forward();
    const auto numbers = trace.loss() ? beginnings(ops, *trace.loss()) : all_beginnings(ops);
    if (const TracedOp* first = first_of(ops, numbers)) name_op(origin, ops, *first, layers, false);
    return origin;
  }
  if (!all_finite(gradients_of(module))) {
    origin.place = Origin::Place::backward;
    const Ops& ops = trace.backward();
    if (const TracedOp* first = first_of(ops, all_beginnings(ops)))
      name_op(origin, ops, *first, layers, true);
    return origin;
  }
  const Ops& ops = trace.forward();
  std::set<std::size_t> numbers = all_beginnings(ops);
  if (trace.loss()) numbers.erase(*trace.loss());  // by the loss scale alone
  const TracedOp* vanished = first_of(ops, numbers, /*on_purpose=*/false);
  if (!vanished) return std::nullopt;
  name_op(origin, ops, *vanished, layers, false);
  origin.vanishes = true;
  return origin;
}

}  // namespace demi::monitor
