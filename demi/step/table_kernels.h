#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "demi/core/export.h"
#include "demi/kernels/cpu_kernels.h"
#include "demi/kernels/cuda_kernels.h"
#include "demi/kernels/path.h"

namespace demi::optim {

/// What runs the passes over a table: kernels of a CPU path, kernels of a device, whose memory the
/// host then never looks into, or, where both are null, tensor operations.
struct TableKernels {
  const kernels::CpuKernels* cpu = nullptr;
  const kernels::CudaKernels* device = nullptr;

  explicit operator bool() const { return cpu || device; }
};

/// For a parameter or its master. `forced`: instead of DEMI_KERNELS or the best here. Throws
/// UsageError where that path cannot serve.
DEMI_API TableKernels kernels_for(const at::Tensor& work, std::optional<kernels::Path> forced);

/// Whether a number of this device is better not read by the host: it would wait.
DEMI_API bool is_asynchronous(c10::Device device);

/// For tests without a GPU: CPU tensors count as a device's, and these kernels serve them; null: no
/// longer. Not while an optimizer is alive.
DEMI_API void emulate_device(const kernels::CudaKernels* kernels);
const kernels::CudaKernels* emulated_kernels();  // of that device, or null

}  // namespace demi::optim
