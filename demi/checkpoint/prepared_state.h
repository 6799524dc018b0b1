#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "demi/checkpoint/checkpoint.h"
#include "demi/checkpoint/parameter_names.h"
#include "demi/checkpoint/safetensors.h"
#include "demi/checkpoint/training_state.h"

namespace demi::checkpoint {

// The functions that messages name.
inline constexpr auto kCapture = "checkpoint.capture";
inline constexpr auto kRestore = "checkpoint.restore";

using Numbers = std::map<std::string, StateDict>;  // as Checkpoint::numbers

/// A checkpoint that was checked against objects and found to fit. Calling the functions, each at
/// most once, puts it into them; until then the objects are not changed. They release each tensor
/// once it is copied.
struct PreparedState {
  /// Puts the state into all objects that prepare() was given.
  std::function<void()> objects;
  /// States of random generators. Empty function: none.
  std::function<void()> random;
  /// The optimizers' parameter groups hold other parameters than those that were saved: options and
  /// base rates of groups stay as they are.
  bool keeps_options = false;
};

/// Takes the tensors of the objects out of the checkpoint. Throws as restore().
PreparedState prepare(Checkpoint& checkpoint, const loop::Job& job);

/// capture() of a Trainer's run, which adds the gradients of a step that is not finished.
Checkpoint capture_within_step(const loop::Job& job);

/// Checks the saved states of the job's schedules, and loads them: to be called before
/// PreparedState::objects, which loads the learning rates of the optimizers' groups.
/// `keeps_rates`: their base rates stay, as PreparedState::keeps_options says.
void load_schedules(const Numbers& numbers, const loop::Job& job, bool keeps_rates);

/// Takes the tensors whose names begin with `prefix` out of `all`, under the rest of their names.
NamedTensors take_part(NamedTensors& all, std::string_view prefix);

/// "optimizer", "optimizer.1", ...: the part of `numbers` that holds an optimizer. Its schedule is
/// in the part of the same number.
std::string part_name(const char* kind, std::size_t index);

/// Moves what `values` holds under further names of the module's tensors to their first names, as
/// named_tensors() has them. Python's state_dict(), and demi before 0.1, write a shared tensor
/// under each of its names. Throws UsageError if two of them differ in a bit.
void use_first_names(NamedTensors& values, const torch::nn::Module& module);

/// Adds each value that `values` holds under a tensor's first name under its further names, too.
void add_further_names(NamedTensors& values, const torch::nn::Module& module);

/// Throws UsageError unless `values` has exactly the names and shapes of `module`, with real
/// numbers where it has real numbers of any dtype. `what`: "the model".
void check_fits(const NamedTensors& values, const NamedTensors& module, const char* what);

/// Writes the values to the module's tensors, in place, and releases each one once it is copied.
void assign(const NamedTensors& module, NamedTensors values);

/// The first names, and how many there are besides.
std::string some_of(const std::vector<std::string>& names);

/// Writes the optimizer's state to `to` under names that begin with `part`: "optimizer",
/// "optimizer.1", and its parameters' names (parameter_names). Throws UsageError for an optimizer
/// whose state LibTorch cannot save.
void capture_optimizer(const torch::optim::Optimizer& optimizer, const std::string& part,
                       const torch::nn::Module& module, const std::vector<at::Tensor>& more,
                       Checkpoint& to);

/// Whether the checkpoint holds the state of an optimizer under this name.
bool has_optimizer(const Checkpoint& checkpoint, const std::string& part);

/// Checks the state, and takes its tensors out of the checkpoint. Parameters are matched by name
/// as `match` has them. The function that it returns puts it into the optimizer. Throws UsageError
/// for a state that does not fit, and then the optimizer is not changed.
///
/// Master weights become the weights of a module whose parameters are FP32, and FP32 weights the
/// masters of one whose parameters have 16 bits: in checkpoint.model and in the state.
std::function<void()> prepare_optimizer(Checkpoint& checkpoint, const std::string& part,
                                        torch::optim::Optimizer& optimizer,
                                        const ParameterMatch& match);

/// Throws UsageError for a finite value that would be Inf, or another integer, in the module's
/// dtype.
void check_range(const NamedTensors& values, const NamedTensors& module);

/// The states of LibTorch's default random generators: "random/cpu", and "random/cuda:0" ... of
/// each CUDA device of this machine, if LibTorch's CUDA part is loaded. uint8, on the CPU.
NamedTensors random_states();

/// Takes the states of generators out of `state`. The function that it returns sets the generators;
/// it is empty if there are none. States of devices that are not there are ignored, with a warning.
/// Throws UsageError for a state that is none.
std::function<void()> prepare_random(NamedTensors& state);

}  // namespace demi::checkpoint
