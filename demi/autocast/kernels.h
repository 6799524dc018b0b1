#pragma once

#include <ATen/core/boxing/OperatorKernel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceType.h>
#include <torch/library.h>

#include <string>
#include <vector>

// demi's kernels on LibTorch's Autocast dispatch keys. They replace LibTorch's for the process, so
// at::autocast's own setters use them, too. Removing them brings LibTorch's back exactly.

namespace demi {

/// The kernel of every op that has no unboxed one. It finds the tensors among the arguments by
/// type, casts them as the op table says, and calls the op again below autocast. One object for
/// each op and device.
class BoxedKernel final : public c10::OperatorKernel {
 public:
  BoxedKernel(c10::DeviceType device, int number);
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);

 private:
  c10::DeviceType device_;
  c10::DispatchKey key_;
  int number_;
};

/// Registers a kernel for the op ("aten::softmax.int") on this device, once. Not thread-safe: the
/// caller holds the lock of the op table.
void ensure_kernel(c10::DeviceType device, const std::string& op, int number);

/// Removes all kernels of this device. The same holds for threads.
void drop_kernels(c10::DeviceType device);

/// Registers an unboxed kernel if the op is one of those that networks call most. False if it is
/// not.
bool register_hot_kernel(torch::Library& library, c10::DeviceType device, const std::string& op,
                         int number);

/// Ops that torch.nn.LSTM calls and that have no rule of their own. Their kernels lead to demi's
/// layer for any dtype of the input and the lengths of its sequences.
std::vector<std::string> lstm_ops();

/// Registers the kernel of one of lstm_ops(), or of the op that torch.nn.LSTM consists of on a CPU.
/// The latter runs demi's own layer (rnn/lstm_layer.h) if the region casts to 16 bits, otherwise
/// LibTorch's. False for any other op.
bool register_lstm_kernel(torch::Library& library, c10::DeviceType device, const std::string& op,
                          int number);

/// Registers the kernel of aten::_cudnn_rnn, which takes a list of weights and the buffer in which
/// they lie. False for any other op, and for devices other than CUDA and CPU. (On the CPU tests
/// supply the op itself.)
bool register_cudnn_rnn_kernel(torch::Library& library, c10::DeviceType device,
                               const std::string& op, int number);

}  // namespace demi
