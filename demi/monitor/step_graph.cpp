#include "demi/monitor/step_graph.h"

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace demi::monitor {
namespace {

using Op = StepGraph::Op;
using Value = StepGraph::Value;
using Place = TensorPlace;

bool is_harmful(const FormatLoss& loss) {
  return loss.overflowed > 0 || loss.lost() >= kHarmfulLoss;
}

const Value& value_of(const StepGraph& graph, int i) {
  return graph.values[static_cast<std::size_t>(i)];
}

double mean_square(const FormatLoss& loss) {
  return loss.elements == 0 ? 0 : loss.energy / static_cast<double>(loss.elements);
}

// Weights that are too small to change a digit of the op's output, and gradients of weights that
// are below fp16's rounding of the terms of their sum: those of a bias in front of a BatchNorm,
// which are 0, and the bias that they move.
//
// Both compare a mean square with another one of as many batches, so that the answer is the same
// for one batch and for a thousand. The square of a number of the output is, in the mean, at most
// |weights|^2 times the mean square of the inputs, and what the weights add to it is no digit of
// fp16 if it is below (2^-11)^2 of it: 2^-11 is the greatest relative error of rounding to fp16. A
// gradient is a sum of products of the output's gradients and the inputs; their roundings add up
// by their squares, as independent errors do, over all rows of all batches.
bool is_noise(const StepGraph& graph, const PlacedTensor& tensor) {
  const bool is_weight = tensor.place == Place::weights;
  if (loss_of(graph, tensor).overflowed > 0) return false;
  if (!is_weight && tensor.place != Place::weight_gradient) return false;
  constexpr double kResolution = 0x1p-22;  // 2^-11, squared
  const Op& op = graph.ops[static_cast<std::size_t>(tensor.op)];
  double least_input = 1, greatest_input = 1, output = 0, terms = 0;
  for (const int v : op.inputs) {
    const FormatLoss& input = value_of(graph, v).forward;
    if (value_of(graph, v).is_parameter || input.elements == 0) continue;
    least_input = std::min(least_input, mean_square(input));
    greatest_input = std::max(greatest_input, mean_square(input));
  }
  for (const int v : op.outputs) {
    output = std::max(output, mean_square(value_of(graph, v).forward));
    terms += value_of(graph, v).gradient.energy;
  }
  const FormatLoss& loss = loss_of(graph, tensor);
  if (!is_weight) return loss.energy <= kResolution * terms * least_input;
  const double square_of_norm =
      mean_square(loss) * static_cast<double>(value_of(graph, tensor.value).size);
  return square_of_norm * greatest_input <= kResolution * output;
}

// Tensors that the format harms, in the order of training: forward, then from the loss backward.
std::vector<PlacedTensor> harmed_tensors(const StepGraph& graph, const KeptInFp32& kept) {
  std::vector<PlacedTensor> found;
  for (const PlacedTensor& tensor : tensors_in_16_bits(graph, kept))
    if (is_harmful(loss_of(graph, tensor)) && !is_noise(graph, tensor)) found.push_back(tensor);
  return found;
}

bool can_be_a_part(const Op& op, const KeptInFp32& kept) {
  return op.reads_weights && op.category != OpCategory::unchanged && op.layer != "model" &&
         !kept.layers.contains(op.layer);
}

// The cure of the op, or else of the op that made its first input, and so on: an op that writes to
// its argument has that one's dtype.
std::optional<Cure> cure_of(const StepGraph& graph, const KeptInFp32& kept,
                            const PlacedTensor& tensor) {
  int i = tensor.op;
  const Op& harmed = graph.ops[static_cast<std::size_t>(i)];
  while (i >= 0) {
    const Op& op = graph.ops[static_cast<std::size_t>(i)];
    if (auto cure = cure_of_op(graph, kept, i)) {
      cure->layer = harmed.layer;
      cure->op = harmed.outer;
      cure->place = tensor.place;
      cure->loss = loss_of(graph, tensor);
      return cure;
    }
    if (op.inputs.empty()) break;
    i = value_of(graph, op.inputs.front()).producer;
  }
  return std::nullopt;
}

// Whether the format harms none but those tensors that nothing cures.
bool is_sound(const StepGraph& graph, const KeptInFp32& kept,
              const std::vector<PlacedTensor>& incurable) {
  return std::ranges::all_of(harmed_tensors(graph, kept), [&](const PlacedTensor& tensor) {
    return std::ranges::find(incurable, tensor) != incurable.end();
  });
}

// "mul" of "aten::mul" and "mul.Tensor".
std::string_view base_of(std::string_view op) {
  if (op.starts_with("aten::")) op.remove_prefix(6);
  return op.substr(0, op.find('.'));
}

}  // namespace

bool is_gradient(Place place) {
  return place == Place::input_gradient || place == Place::output_gradient ||
         place == Place::weight_gradient;
}

std::optional<Cure> cure_of_op(const StepGraph& graph, const KeptInFp32& kept, int number) {
  const Op& op = graph.ops[static_cast<std::size_t>(number)];
  Cure cure{.name = op.layer, .layer = op.layer, .op = op.outer};
  if (can_be_a_part(op, kept)) return cure;
  // A tensor that is computed from nothing has no argument that could be cast.
  if (!op.has_rule || op.inputs.empty() || category_of(op, kept) == OpCategory::fp32)
    return std::nullopt;
  cure.kind = Cure::Kind::op;
  cure.name = op.outer;
  return cure;
}

KeptInFp32 with(KeptInFp32 kept, const std::vector<Cure>& cures) {
  for (const Cure& cure : cures)
    (cure.kind == Cure::Kind::part ? kept.layers : kept.ops).insert(cure.name);
  return kept;
}

OpCategory category_of(const Op& op, const KeptInFp32& kept) {
  const bool is_in_part =
      op.reads_weights && op.category != OpCategory::unchanged && kept.layers.contains(op.layer);
  const bool is_named = kept.ops.contains(op.name) || kept.ops.contains(op.outer);
  return is_in_part || is_named ? OpCategory::fp32 : op.category;
}

bool gives_16_bits(const Op& op, const KeptInFp32& kept, const std::vector<bool>& is_16_bit) {
  const auto is_low = [&](int value) { return bool(is_16_bit[static_cast<std::size_t>(value)]); };
  switch (category_of(op, kept)) {
    case OpCategory::lower_precision:
      return true;
    case OpCategory::fp32:
    case OpCategory::fp32_output:
    case OpCategory::banned:
      return false;
    case OpCategory::promote:
    case OpCategory::unchanged:
      break;
  }
  switch (op.follows) {
    case StepGraph::Follows::always:
      return true;
    case StepGraph::Follows::any:
      return std::ranges::any_of(op.inputs, is_low);
    case StepGraph::Follows::never:
      return false;
    case StepGraph::Follows::first:
    case StepGraph::Follows::all:
      break;
  }
  if (op.inputs.empty()) return false;
  return op.follows == StepGraph::Follows::first ? is_low(op.inputs.front())
                                                 : std::ranges::all_of(op.inputs, is_low);
}

std::vector<bool> values_in_16_bits(const StepGraph& graph, const KeptInFp32& kept) {
  std::vector<bool> low(graph.values.size());
  for (const Op& op : graph.ops) {
    const bool is_low = gives_16_bits(op, kept, low);
    for (const int output : op.outputs) low[static_cast<std::size_t>(output)] = is_low;
  }
  return low;
}

std::vector<PlacedTensor> tensors_in_16_bits(const StepGraph& graph, const KeptInFp32& kept) {
  const std::vector<bool> low = values_in_16_bits(graph, kept);
  const auto is_low = [&](int value) { return bool(low[static_cast<std::size_t>(value)]); };
  const auto is_parameter = [&](int value) { return value_of(graph, value).is_parameter; };
  const auto casts = [&](const Op& op) {
    return category_of(op, kept) == OpCategory::lower_precision;
  };
  std::vector<PlacedTensor> forward, backward;
  for (int i = 0; const Op& op : graph.ops) {
    if (casts(op))
      for (const int v : op.inputs)
        if (!is_low(v)) forward.push_back({i, v, is_parameter(v) ? Place::weights : Place::input});
    for (const int v : op.outputs)
      if (is_low(v)) forward.push_back({i, v, Place::output});
    ++i;
  }
  for (auto at = forward.rbegin(); at != forward.rend(); ++at)
    backward.push_back({at->op, at->value,
                        at->place == Place::output    ? Place::output_gradient
                        : at->place == Place::weights ? Place::weight_gradient
                                                      : Place::input_gradient});
  forward.insert(forward.end(), backward.begin(), backward.end());
  return forward;
}

const FormatLoss& loss_of(const StepGraph& graph, const PlacedTensor& tensor) {
  const Value& value = value_of(graph, tensor.value);
  return is_gradient(tensor.place) ? value.gradient : value.forward;
}

std::vector<Cure> find_cures(const StepGraph& graph, const KeptInFp32& kept) {
  std::vector<Cure> cures;
  std::vector<PlacedTensor> incurable;
  for (bool searching = true; searching;) {
    searching = false;
    const KeptInFp32 now = with(kept, cures);
    for (const PlacedTensor& tensor : harmed_tensors(graph, now)) {
      if (std::ranges::find(incurable, tensor) != incurable.end()) continue;
      if (auto cure = cure_of(graph, now, tensor))
        cures.push_back(*std::move(cure));
      else
        incurable.push_back(tensor);
      searching = true;
      break;
    }
  }
  // A later cure may have made an earlier one needless.
  return without_needless(std::move(cures), [&](const std::vector<Cure>& others) {
    return is_sound(graph, with(kept, others), incurable);
  });
}

void CureSearch::add(int op) {
  if (op >= 0 && seen_.insert(op).second) open_.push_back(op);
}

// Ops with the origin's layer and name; all of the layer if no name matches.
std::vector<int> CureSearch::ops_of(const Origin& origin) const {
  const std::string_view wanted = base_of(origin.forward_op);
  std::vector<int> found, of_layer;
  for (int i = 0; const StepGraph::Op& op : graph_.ops) {
    if (op.layer == origin.name) of_layer.push_back(i);
    if (op.layer == origin.name && (base_of(op.outer) == wanted || base_of(op.name) == wanted))
      found.push_back(i);
    ++i;
  }
  return found.empty() ? of_layer : found;
}

std::vector<Cure> CureSearch::next(const Origin& origin) {
  for (const int op : ops_of(origin)) add(op);
  std::vector<Cure> cures;
  while (cures.empty()) {
    if (open_.empty()) {
      // The tensor that gives another one its dtype need not be among its inputs.
      const int before = seen_.empty() ? static_cast<int>(graph_.ops.size()) : *seen_.begin();
      add(before - 1);
      if (open_.empty()) return {};
    }
    std::vector<int> behind;
    for (const int i : std::exchange(open_, {})) {
      if (const auto cure = cure_of_op(graph_, with(kept_, cures), i)) cures.push_back(*cure);
      for (const int value : graph_.ops[static_cast<std::size_t>(i)].inputs)
        behind.push_back(graph_.values[static_cast<std::size_t>(value)].producer);
    }
    for (const int i : behind) add(i);
  }
  kept_ = with(kept_, cures);
  return cures;
}

std::vector<Cure> without_needless(std::vector<Cure> cures,
                                   const std::function<bool(const std::vector<Cure>&)>& is_enough) {
  for (std::size_t i = 0; i < cures.size();) {
    std::vector<Cure> others = cures;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
    if (is_enough(others))
      cures = std::move(others);
    else
      ++i;
  }
  return cures;
}

}  // namespace demi::monitor
