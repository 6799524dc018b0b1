#include "demi/profile/gpu.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cstddef>

namespace demi::profile {
namespace {

// CUdevice_attribute of cuda.h.
constexpr int kMajor = 75, kMinor = 76;

constexpr int kSuccess = 0;  // CUDA_SUCCESS and NVML_SUCCESS

// The function of that name, called; any other number than 0 where it is not there.
template <class... Arguments>
int call(const DriverSymbols& symbols, const char* name, Arguments... arguments) {
  void* const address = symbols(name);
  if (!address) return -1;
  return reinterpret_cast<int (*)(Arguments...)>(address)(arguments...);
}

int attribute(const DriverSymbols& symbols, int which, int device) {
  int value = 0;
  call(symbols, "cuDeviceGetAttribute", &value, which, device);
  return value;
}

// nvidia-smi's number, which libcuda does not tell.
std::string driver_version(const DriverSymbols& symbols) {
  std::array<char, 96> version{};
  if (call(symbols, "nvmlInit_v2") != kSuccess) return "";
  const int error = call(symbols, "nvmlSystemGetDriverVersion", version.data(),
                         static_cast<unsigned>(version.size() - 1));
  call(symbols, "nvmlShutdown");
  return error == kSuccess ? version.data() : "";
}

std::string cuda_version(const DriverSymbols& symbols) {
  int version = 0;  // 1000 x major + 10 x minor
  if (call(symbols, "cuDriverGetVersion", &version) != kSuccess || version == 0) return "";
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

void* symbol_of_driver(const char* name) {
  static void* const cuda = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  static void* const management = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
  for (void* library : {cuda, management}) {
    if (void* const address = library ? dlsym(library, name) : nullptr) return address;
  }
  return nullptr;
}

}  // namespace

std::optional<Gpu> gpu(int ordinal, const DriverSymbols& symbols) {
  int device = 0;  // CUdevice
  if (call(symbols, "cuInit", 0U) != kSuccess ||
      call(symbols, "cuDeviceGet", &device, ordinal) != kSuccess)
    return std::nullopt;
  std::array<char, 256> name{};
  std::size_t bytes = 0;
  call(symbols, "cuDeviceGetName", name.data(), static_cast<int>(name.size() - 1), device);
  call(symbols, "cuDeviceTotalMem_v2", &bytes, device);
  return Gpu{.name = name.data(),
             .memory_bytes = static_cast<std::int64_t>(bytes),
             .compute_capability = fmt::format("{}.{}", attribute(symbols, kMajor, device),
                                               attribute(symbols, kMinor, device)),
             .driver = driver_version(symbols),
             .cuda = cuda_version(symbols)};
}

std::optional<Gpu> gpu(int ordinal) { return gpu(ordinal, symbol_of_driver); }

}  // namespace demi::profile
