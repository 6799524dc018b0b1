#include "demi/imported/nested_run.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "demi/autocast/autocast.h"
#include "demi/core/error.h"
#include "demi/recompute/recompute.h"

namespace demi::imported {
namespace {

std::vector<at::Tensor> tensors_of(Values values) {
  std::vector<at::Tensor> tensors;
  for (c10::IValue& value : values) {
    require(value.isTensor(), {.where = "imported.forward",
                               .what = "a checkpointed part returns something that is no tensor",
                               .seen = value.tagKind(),
                               .accepted = "tensors",
                               .advice = "let the function that is given to checkpoint return "
                                         "tensors alone"});
    tensors.push_back(std::move(value).toTensor());
  }
  return tensors;
}

/// The tensors that are activations are inputs of recompute; what belongs to the model, and
/// numbers, stay with the function.
Values run_checkpoint(const Nested& nested, Values inputs, const RunState& state) {
  std::vector<std::size_t> places;
  std::vector<at::Tensor> activations;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (nested.is_state[i] || !inputs[i].isTensor()) continue;
    places.push_back(i);
    activations.push_back(std::exchange(inputs[i], c10::IValue()).toTensor());
  }
  const auto run = [graph = nested.graph, kept = std::move(inputs), places = std::move(places),
                    state](const std::vector<at::Tensor>& given) {
    Values all = kept;
    for (std::size_t i = 0; i < places.size(); ++i) all[places[i]] = given[i];
    return tensors_of(graph->run(all, state));
  };
  const std::vector<at::Tensor> outputs =
      recompute(run, activations, {.preserve_random_state = nested.preserve_random_state});
  return Values(outputs.begin(), outputs.end());
}

}  // namespace

Values run_nested(const Nested& nested, Values inputs, const RunState& state) {
  switch (nested.kind) {
    case Nested::Kind::gradients: {
      const at::AutoGradMode mode(nested.enabled);
      return nested.graph->run(inputs, state);
    }
    case Nested::Kind::autocast: {
      const Autocast region(state.device.type(),
                            AutocastOptions{.dtype = nested.dtype, .enabled = nested.enabled});
      return nested.graph->run(inputs, state);
    }
    case Nested::Kind::checkpoint:
      return run_checkpoint(nested, std::move(inputs), state);
  }
  return {};
}

}  // namespace demi::imported
