#pragma once

#include <torch/library.h>

#include <string>

namespace demi {

/// Registers the kernel for aten::_cudnn_rnn, which takes a list of weights and the buffer that
/// they lie in. False for any other op and for devices other than CUDA and (for tests, which supply
/// the op below) CPU.
bool register_cudnn_rnn_kernel(torch::Library& library, c10::DeviceType device,
                               const std::string& op, int number);

}  // namespace demi
