#include "demi/tensor/device.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>

#include <algorithm>
#include <string>
#include <vector>

#include "demi/core/cuda_library.h"
#include "demi/core/error.h"
#include "demi/core/nearest.h"

namespace demi {
namespace {

bool cuda_is_usable() {
  return load_cuda().loaded && at::globalContext().hasCUDA() && at::hasCUDA();
}

c10::Device checked_cuda(const c10::Device& device) {
  if (!cuda_is_usable()) {
    const std::string reason =
        load_cuda().loaded ? "LibTorch finds no CUDA device" : load_cuda().reason;
    throw DeviceError(
        {.where = "pick_device",
         .what = "CUDA cannot be used: " + reason,
         .seen = device.str(),
         .advice = "use the device \"cpu\", or run where an NVIDIA driver is installed"});
  }
  const int count = static_cast<int>(at::accelerator::deviceCount());
  if (device.index() >= count) {
    throw DeviceError({.where = "pick_device",
                       .what = "no such CUDA device",
                       .seen = device.str(),
                       .accepted = "cuda:0 to cuda:" + std::to_string(count - 1)});
  }
  return device;
}

}  // namespace

c10::Device pick_device(std::string_view name) {
  if (name == "cpu") return c10::kCPU;
  if (name == "auto") return cuda_is_usable() ? c10::Device(c10::kCUDA, 0) : c10::Device(c10::kCPU);
  if (name == "cuda") return checked_cuda(c10::Device(c10::kCUDA, 0));
  const std::string_view digits = name.substr(std::min<std::size_t>(5, name.size()));
  const bool is_number =
      !digits.empty() && digits.size() < 4 && digits.find_first_not_of("0123456789") == digits.npos;
  if (name.starts_with("cuda:") && is_number) {
    return checked_cuda(
        c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(std::stoi(std::string(digits)))));
  }
  const std::vector<std::string> known{"auto", "cpu", "cuda", "cuda:0"};
  const std::string_view meant = name.starts_with("gpu") ? "cuda" : name;  // by its letters: cpu
  throw UsageError({.where = "pick_device",
                    .what = "no such device",
                    .seen = name,
                    .advice = did_you_mean(meant, known)});
}

}  // namespace demi
