#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "demi/imported/archive.h"

namespace demi::imported {

enum class StateKind {
  parameter,
  buffer,
  hidden_buffer,  // not in Python's state_dict (persistent=False)
  constant,
};

/// A tensor that belongs to the model.
struct StateTensor {
  StateKind kind = StateKind::parameter;
  std::string name;  // Python's; of a constant with the graph's before it
  at::Tensor tensor;
  bool is_trainable = false;
};

/// The tensors of the graphs in Python's order: those of the first graph, then what the others add,
/// then weights that no graph reads. Tied weights are the same tensor under several names. Throws
/// DataError for parameters that overlap in one storage, and names that no module can have.
std::vector<StateTensor> read_state(const Archive& archive,
                                    const std::vector<const Program*>& programs);

/// The key of a graph's input in the state; -1 if the input is no state.
std::ptrdiff_t find_state(const std::vector<StateTensor>& state, const Program& program,
                          const InputSpec& input);

/// Puts parameters and buffers into the module and modules below it, under Python's names. Modules
/// among `normalisations` are demi::Normalisation.
void register_state(torch::nn::Module& module, const std::vector<StateTensor>& state,
                    const std::set<std::string>& normalisations);

/// A copy on a device, in which tied weights are tied, too.
std::vector<StateTensor> copy_state(const std::vector<StateTensor>& state,
                                    const std::optional<c10::Device>& device);

}  // namespace demi::imported
