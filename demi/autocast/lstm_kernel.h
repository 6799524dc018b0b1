#pragma once

#include <torch/library.h>

#include <string>
#include <vector>

namespace demi {

/// Ops that torch.nn.LSTM calls and that have no rule of their own: a kernel of ours brings them to
/// demi's layer whatever the dtype of their input and the lengths of its sequences.
std::vector<std::string> lstm_ops();

/// Registers the kernel of the op that torch.nn.LSTM is made of on a CPU, which runs demi's own
/// layer (rnn/lstm_layer.h) where the region casts to 16 bits, and LibTorch's elsewhere; or of one
/// of lstm_ops(). False: the op is another one.
bool register_lstm_kernel(torch::Library& library, c10::DeviceType device, const std::string& op,
                          int number);

}  // namespace demi
