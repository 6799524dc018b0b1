#pragma once

#include <torch/library.h>

#include <string>

namespace demi {

/// Registers the kernel of aten::_cudnn_rnn, which takes a list of weights and the buffer in which
/// they lie. False for any other op, and for devices other than CUDA and CPU. (On the CPU tests
/// supply the op itself.)
bool register_cudnn_rnn_kernel(torch::Library& library, c10::DeviceType device,
                               const std::string& op, int number);

}  // namespace demi
