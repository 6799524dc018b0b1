#pragma once

#include <torch/nn/module.h>

#include "demi/checkpoint/safetensors.h"

namespace demi::checkpoint {

/// Parameters and buffers under their module's names: those of the module, detached.
NamedTensors tensors_of(const torch::nn::Module& module);

/// Throws UsageError unless `values` has exactly the names and shapes of `module`, with real
/// numbers where it has real numbers of any dtype. `what`: "the model".
void check_fits(const NamedTensors& values, const NamedTensors& module, const char* what);

/// Writes the values to the module's tensors, in place, and lets go of each one once it is copied.
void assign(const NamedTensors& module, NamedTensors values);

}  // namespace demi::checkpoint
