#pragma once

#include <torch/library.h>

#include <string>

namespace demi {

/// Registers an unboxed kernel if the op is one of those that networks call most. False if it is
/// not.
bool register_hot_kernel(torch::Library& library, c10::DeviceType device, const std::string& op,
                         int number);

}  // namespace demi
