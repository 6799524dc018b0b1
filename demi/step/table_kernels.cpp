#include "demi/step/table_kernels.h"

#include <c10/core/DeviceGuard.h>

#include <string>

namespace demi::optim {
namespace {

const kernels::CudaKernels* emulated = nullptr;

kernels::Path path_of(kernels::Device device, std::optional<kernels::Path> forced) {
  if (!forced) return kernels::path_for(device);
  return kernels::path_for(device, std::string(kernels::name_of(*forced)));
}

}  // namespace

TableKernels kernels_for(const at::Tensor& work, std::optional<kernels::Path> forced) {
  if (work.scalar_type() != at::kFloat) return {};
  if (work.is_cpu()) {
    if (emulated) return {.device = emulated};
    return {.cpu = kernels::cpu_kernels(path_of(kernels::Device::cpu, forced))};
  }
  // The first look at the kernels makes a context on the current device: on this one then, not on
  // the first GPU of the machine.
  const c10::DeviceGuard guard(work.device());
  const bool ours = work.is_cuda() && path_of(kernels::Device::cuda, forced) == kernels::Path::cuda;
  return {.device = ours ? kernels::cuda_kernels() : nullptr};
}

bool is_asynchronous(c10::Device device) { return !device.is_cpu() || emulated; }

const kernels::CudaKernels* emulated_kernels() { return emulated; }

void emulate_device(const kernels::CudaKernels* kernels) { emulated = kernels; }

}  // namespace demi::optim
