#pragma once

#include <torch/nn/module.h>

#include "demi/checkpoint/safetensors.h"

namespace demi::checkpoint {

/// Parameters and buffers, those of the module, detached: each tensor once, under the first of the
/// names that the module has for it.
NamedTensors tensors_of(const torch::nn::Module& module);

/// What `values` holds under further names of the module's tensors is kept under the first ones, as
/// tensors_of() has them: state_dict() of Python, and demi before 0.1, write a shared tensor under
/// each of its names.
void use_first_names(NamedTensors& values, const torch::nn::Module& module);

/// What `values` holds under a tensor's first name is there under its further names, too.
void add_further_names(NamedTensors& values, const torch::nn::Module& module);

/// Throws UsageError unless `values` has exactly the names and shapes of `module`, with real
/// numbers where it has real numbers of any dtype. `what`: "the model".
void check_fits(const NamedTensors& values, const NamedTensors& module, const char* what);

/// Writes the values to the module's tensors, in place, and lets go of each one once it is copied.
void assign(const NamedTensors& module, NamedTensors values);

}  // namespace demi::checkpoint
