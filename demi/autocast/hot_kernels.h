#pragma once

#include <torch/library.h>

#include <string>

namespace demi {

/// Registers an unboxed kernel for the ops that networks spend their calls in. False: the op is
/// none of them.
bool register_hot_kernel(torch::Library& library, c10::DeviceType device, const std::string& op,
                         int number);

}  // namespace demi
