#include "demi/step/backend.h"

#include <c10/core/DeviceGuard.h>

#include <string>

#include "demi/core/error.h"
#include "demi/step/streams.h"

namespace demi::optim {
namespace {

kernels::Path path_of(kernels::Device device, std::optional<kernels::Path> forced) {
  if (!forced) return kernels::path_for(device);
  return kernels::path_for(device, std::string(kernels::name_of(*forced)));
}

}  // namespace

Backend::~Backend() = default;

TableKernels Backend::kernels_for(const at::Tensor& work,
                                  std::optional<kernels::Path> forced) const {
  if (work.scalar_type() != at::kFloat) return {};
  if (work.is_cpu()) return {.cpu = kernels::cpu_kernels(path_of(kernels::Device::cpu, forced))};
  // The first call of cuda_kernels() makes a context on the current device: it must be this one,
  // not the first GPU of the machine.
  const c10::DeviceGuard guard(work.device());
  const bool ours = work.is_cuda() && path_of(kernels::Device::cuda, forced) == kernels::Path::cuda;
  return {.device = ours ? kernels::cuda_kernels() : nullptr};
}

bool Backend::is_asynchronous(c10::Device device) const { return !device.is_cpu(); }

bool Backend::is_capturing(c10::Device device) const { return optim::is_capturing(device); }

void require_no_capture(const Backend& backend, c10::Device device) {
  if (!backend.is_capturing(device)) return;
  refuse({.where = "optim.step",
          .what =
              "the first step of a parameter is captured into a graph: each replay would set its "
              "state to 0",
          .accepted = "one step outside, before the capture",
          .advice = "take a step on these gradients, then capture"});
}

const Backend& machine_backend() {
  static const Backend backend;
  return backend;
}

}  // namespace demi::optim
