#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include "demi/kernels/batch_norm.h"
#include "demi/kernels/cpu_kernels.h"
#include "demi/kernels/cuda_kernels.h"

namespace demi::batch_norm {

/// The kernels that compute a call: those of a CPU, or those of a device, whose memory the host
/// never reads. Tables live as long as the process. With neither LibTorch's operators compute it.
struct Engine {
  const kernels::CpuKernels* cpu = nullptr;
  const kernels::CudaKernels* device = nullptr;

  explicit operator bool() const { return cpu || device; }
};

/// The passes of kernels::BatchNorm over tensors of one device. Launches go to the device's current
/// stream, and nothing waits for them.
class Passes {
 public:
  /// `like`: a tensor of the device.
  Passes(const Engine& engine, const at::Tensor& like);
  Passes(const Passes&) = delete;
  Passes& operator=(const Passes&) = delete;

  /// New FP32 memory of the device.
  at::Tensor floats(at::IntArrayRef shape) const;

  /// Runs a pass without sums.
  void run(const kernels::BatchNorm& norm, kernels::BatchNormPass pass) const;
  /// Fills `to` from the batch, whose share the running statistics take, or from these alone.
  void statistics(kernels::BatchNorm norm, const kernels::ChannelStatistics& to,
                  bool of_batch) const;
  /// Runs gradient_sums, and fills `to`.
  void gradients(kernels::BatchNorm norm, const kernels::ChannelGradients& to) const;

 private:
  Engine engine_;
  at::TensorOptions options_;
  c10::OptionalDeviceGuard guard_;  // launches go to the current device
  void* stream_;
};

}  // namespace demi::batch_norm
