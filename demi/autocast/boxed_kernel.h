#pragma once

#include <ATen/core/boxing/OperatorKernel.h>
#include <ATen/core/dispatch/Dispatcher.h>

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

}  // namespace demi
