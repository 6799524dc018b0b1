#pragma once

#include <torch/library.h>

#include <string>
#include <vector>

namespace demi {

/// Ops that torch.nn.LSTM calls and that have no rule of their own. Their kernels lead to demi's
/// layer whatever the dtype of the input and the lengths of its sequences.
std::vector<std::string> lstm_ops();

/// Registers the kernel of one of lstm_ops(), or of the op that torch.nn.LSTM consists of on a CPU.
/// The latter runs demi's own layer (rnn/lstm_layer.h) if the region casts to 16 bits, otherwise
/// LibTorch's. False for any other op.
bool register_lstm_kernel(torch::Library& library, c10::DeviceType device, const std::string& op,
                          int number);

}  // namespace demi
