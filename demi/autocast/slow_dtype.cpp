#include "demi/autocast/slow_dtype.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <array>

#include "demi/core/bf16_products.h"
#include "demi/core/instruction_set.h"
#include "demi/products/through_fp32.h"

namespace demi {

namespace {

using Init = int (*)(unsigned);
using Count = int (*)(int*);
using Device = int (*)(int*, int);
using Attribute = int (*)(int*, int, int);

template <class F>
F symbol(void* library, const char* name) {
  return reinterpret_cast<F>(dlsym(library, name));
}

std::optional<std::vector<int>> ask_driver(void* driver) {
  constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
  const auto init = symbol<Init>(driver, "cuInit");
  const auto count = symbol<Count>(driver, "cuDeviceGetCount");
  const auto device = symbol<Device>(driver, "cuDeviceGet");
  const auto attribute = symbol<Attribute>(driver, "cuDeviceGetAttribute");
  int devices = 0;
  if (!init || !count || !device || !attribute || init(0) != 0 || count(&devices) != 0)
    return std::nullopt;
  std::vector<int> capabilities;
  for (int i = 0; i < devices; ++i) {
    int handle = 0, major = 0, minor = 0;
    if (device(&handle, i) != 0 || attribute(&major, kMajor, handle) != 0 ||
        attribute(&minor, kMinor, handle) != 0)
      return std::nullopt;
    capabilities.push_back(10 * major + minor);
  }
  return capabilities;
}

// 10 * major + minor of each CUDA device, read from the driver that LibTorch has loaded, so that no
// CUDA header is needed; nullopt before it is loaded.
std::optional<std::vector<int>> cuda_compute_capabilities() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
  if (!driver) return std::nullopt;
  const auto capabilities = ask_driver(driver);
  dlclose(driver);
  return capabilities;
}

const char* why_fp16_is_slow() {
  if (onednn_instruction_set().avx512_fp16)
    return "oneDNN has no fast fp16 kernel for a convolution's gradients";
  return instruction_set().avx512_fp16
             ? "ONEDNN_MAX_CPU_ISA leaves out the processor's FP16 instructions"
             : "the processor has no FP16 instructions";
}

std::string why_slow_on_cpu(c10::ScalarType dtype) {
  if (!products::slow_in(dtype)) return "";
  const bool is_half = dtype == c10::ScalarType::Half;
  return std::string(is_half ? "fp16" : "bf16") +
         " matrix products and convolutions are computed in FP32 here, and gain no time; what 16 "
         "bits save is memory (activations take half): " +
         (is_half ? why_fp16_is_slow() : bf16_choice().because);
}

}  // namespace

std::string why_slow_on_cuda(int compute_capability, c10::ScalarType dtype) {
  if (dtype == c10::ScalarType::BFloat16 && compute_capability < 80)
    return "bf16 has no hardware below compute capability 8.0: products are computed in FP32 after "
           "a conversion, and gain no time";
  if (dtype != c10::ScalarType::Half) return "";
  if (compute_capability < 53)
    return "fp16 has no hardware below compute capability 5.3: products are computed in FP32 after "
           "a conversion, and gain no time";
  if (compute_capability == 61)
    return "fp16 arithmetic runs at 1/64 of the rate of FP32 on compute capability 6.1";
  if (compute_capability < 70)
    return "fp16 has no tensor cores below compute capability 7.0, which make its products fast";
  return "";
}

std::string why_slow_on_cuda(const std::vector<int>& capabilities, c10::ScalarType dtype) {
  std::string devices, why;
  for (std::size_t i = 0; i < capabilities.size(); ++i) {
    const std::string one = why_slow_on_cuda(capabilities[i], dtype);
    if (one.empty()) continue;
    devices += (devices.empty() ? "" : ", ") + std::to_string(i);
    if (why.empty()) why = one;
  }
  return why.empty() || capabilities.size() == 1 ? why : why + " (cuda device " + devices + ")";
}

std::string why_slow(c10::DeviceType device, c10::ScalarType dtype) {
  if (device == c10::DeviceType::CPU) return why_slow_on_cpu(dtype);
  if (device != c10::DeviceType::CUDA) return "";
  return why_slow_on_cuda(cuda_compute_capabilities().value_or(std::vector<int>()), dtype);
}

std::string once_known(std::atomic<bool>& known,
                       const std::function<std::optional<std::string>()>& ask) {
  if (known.load(std::memory_order_relaxed)) return "";
  const auto answer = ask();
  if (!answer || known.exchange(true)) return "";
  return *answer;
}

void warn_where_slow(c10::DeviceType device, c10::ScalarType dtype) {
  const bool is_cpu = device == c10::DeviceType::CPU;
  if (!is_cpu && device != c10::DeviceType::CUDA) return;
  if (!c10::impl::hasDeviceGuardImpl(device)) return;  // spares a search for the driver each time
  static std::array<std::array<std::atomic<bool>, 2>, 2> known{};
  const auto ask = [&]() -> std::optional<std::string> {
    if (is_cpu) return why_slow_on_cpu(dtype);
    const auto capabilities = cuda_compute_capabilities();
    if (!capabilities) return std::nullopt;
    return why_slow_on_cuda(*capabilities, dtype);
  };
  const std::string why = once_known(known[is_cpu][dtype == c10::ScalarType::Half], ask);
  if (!why.empty()) {
    TORCH_WARN("[autocast.Autocast] ", why, "; measure a training step in both before you choose");
  }
}

}  // namespace demi
