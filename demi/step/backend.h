#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "demi/core/export.h"
#include "demi/kernels/cpu_kernels.h"
#include "demi/kernels/cuda_kernels.h"
#include "demi/kernels/path.h"

namespace demi::optim {

/// The kernels that run the passes over a table: those of a CPU path, or those of a device, whose
/// memory the host never reads. If both are null, tensor operations run them.
struct TableKernels {
  const kernels::CpuKernels* cpu = nullptr;
  const kernels::CudaKernels* device = nullptr;

  explicit operator bool() const { return cpu || device; }
};

/// How a step reaches the machine's devices. Optimizers and scalers hold a reference to theirs.
/// Tests without a GPU hand in another one (emulated_device_testing.h).
class DEMI_API Backend {
 public:
  virtual ~Backend();

  /// The kernels for a parameter or its master. `forced`: the path to use instead of DEMI_KERNELS
  /// or the best one here. Throws UsageError if that path cannot be used.
  virtual TableKernels kernels_for(const at::Tensor& work,
                                   std::optional<kernels::Path> forced) const;

  /// Whether the host would wait for a device if it read a number from it.
  virtual bool is_asynchronous(c10::Device device) const;

  /// Whether the device's current stream is being captured into a graph.
  virtual bool is_capturing(c10::Device device) const;
};

/// Throws UsageError while the device captures. Called before memory of an optimizer is filled for
/// the first time, since each replay would fill it again.
void require_no_capture(const Backend& backend, c10::Device device);

/// The devices that the machine has.
DEMI_API const Backend& machine_backend();

}  // namespace demi::optim
