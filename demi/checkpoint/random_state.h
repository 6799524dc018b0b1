#pragma once

#include <functional>

#include "demi/checkpoint/safetensors.h"

namespace demi::checkpoint {

/// The states of LibTorch's default random generators: "random/cpu", and "random/cuda:0" ... of
/// each CUDA device of this machine, if LibTorch's CUDA part is loaded. uint8, on the CPU.
NamedTensors random_states();

/// Takes the states of generators out of `state`. The function that it returns sets the generators;
/// it is empty if there are none. States of devices that are not there are passed over, with a
/// warning. Throws UsageError for a state that is none.
std::function<void()> prepare_random(NamedTensors& state);

}  // namespace demi::checkpoint
