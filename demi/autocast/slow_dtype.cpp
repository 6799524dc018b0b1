#include "demi/autocast/slow_dtype.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <array>
#include <atomic>

#include "demi/products/through_fp32.h"

namespace demi {

namespace {

// 10 * major + minor of the first CUDA device, asked of the driver that LibTorch has loaded, so
// that no CUDA header is needed; 0 where there is none.
int cuda_compute_capability() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
  if (!driver) return 0;
  constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
  using Init = int (*)(unsigned);
  using Get = int (*)(int*, int, int);
  const auto init = reinterpret_cast<Init>(dlsym(driver, "cuInit"));
  const auto attribute = reinterpret_cast<Get>(dlsym(driver, "cuDeviceGetAttribute"));
  int major = 0, minor = 0;
  constexpr int kFirstDevice = 0;
  const bool known = init && attribute && init(0) == 0 &&
                     attribute(&major, kMajor, kFirstDevice) == 0 &&
                     attribute(&minor, kMinor, kFirstDevice) == 0;
  dlclose(driver);
  return known ? 10 * major + minor : 0;
}

std::string why_slow_on_cpu(c10::ScalarType dtype) {
  if (!products::slow_in(dtype)) return "";
  const bool is_half = dtype == c10::ScalarType::Half;
  return std::string(is_half ? "fp16" : "bf16") +
         " matrix products and convolutions are computed in FP32 here, and a step takes 1.0 to "
         "1.25 times as long as in FP32: the processor has no " +
         (is_half ? "FP16" : "BF16") + " instructions";
}

}  // namespace

std::string why_slow_on_cuda(int compute_capability, c10::ScalarType dtype) {
  if (dtype == c10::ScalarType::BFloat16 && compute_capability < 80)
    return "bf16 has no hardware below compute capability 8.0: products are computed in FP32 after "
           "a conversion, so that it is slower than FP32";
  if (dtype != c10::ScalarType::Half) return "";
  if (compute_capability < 53)
    return "fp16 has no hardware below compute capability 5.3: products are computed in FP32 after "
           "a conversion, so that it is slower than FP32";
  if (compute_capability == 61)
    return "fp16 arithmetic runs at 1/64 of the rate of FP32 on compute capability 6.1";
  return "";
}

std::string why_slow(c10::DeviceType device, c10::ScalarType dtype) {
  if (device == c10::DeviceType::CPU) return why_slow_on_cpu(dtype);
  if (device != c10::DeviceType::CUDA) return "";
  const int capability = cuda_compute_capability();
  return capability ? why_slow_on_cuda(capability, dtype) : "";
}

void warn_where_slow(c10::DeviceType device, c10::ScalarType dtype) {
  const bool is_cpu = device == c10::DeviceType::CPU;
  if (!is_cpu && device != c10::DeviceType::CUDA) return;
  static std::array<std::array<std::atomic<bool>, 2>, 2> warned{};
  auto& once = warned[is_cpu][dtype == c10::ScalarType::Half];
  if (once.load(std::memory_order_relaxed) || once.exchange(true)) return;
  const std::string why = why_slow(device, dtype);
  if (!why.empty())
    TORCH_WARN("[autocast.Autocast] ", why,
               "; train in FP32 on this machine, or go on to save memory");
}

}  // namespace demi
