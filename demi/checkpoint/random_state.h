#pragma once

#include <functional>

#include "demi/checkpoint/safetensors.h"

namespace demi::checkpoint {

/// The states of LibTorch's default random generators: "random/cpu", and "random/cuda:0" ... of
/// each CUDA device of this machine, if LibTorch's CUDA part is loaded. uint8, on the CPU.
NamedTensors random_states();

/// The function that sets the generators to the states among `state`; empty if there are none.
/// States of devices that are not there are left alone, with a warning. Throws UsageError for a
/// state that is none, and changes nothing.
std::function<void()> prepare_random(const NamedTensors& state);

}  // namespace demi::checkpoint
