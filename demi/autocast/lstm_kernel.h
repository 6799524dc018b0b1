#pragma once

#include <torch/library.h>

#include <string>

namespace demi {

/// Registers the kernel of the op that torch.nn.LSTM is made of on a CPU, which runs demi's own
/// layer (rnn/lstm_layer.h) where the region casts to 16 bits, and LibTorch's elsewhere. False: the
/// op is another one.
bool register_lstm_kernel(torch::Library& library, c10::DeviceType device, const std::string& op,
                          int number);

}  // namespace demi
