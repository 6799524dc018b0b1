#include <dlfcn.h>

#include <string>

#include "demi/kernels/cuda_kernels.h"

// Opens libdemi_cuda.so if there is a driver. Only its name is known at build time
// (DEMI_CUDA_BUILT): it is installed in the folder of the library that contains this code.
namespace demi::kernels {
namespace {

struct Loaded {
  const CudaKernels* kernels = nullptr;
  std::string why;
};

std::string folder_of_this_library() {
  Dl_info info{};
  if (!dladdr(reinterpret_cast<const void*>(&cuda_kernels), &info) || !info.dli_fname) return {};
  const std::string file = info.dli_fname;
  const auto slash = file.rfind('/');
  return slash == std::string::npos ? std::string() : file.substr(0, slash + 1);
}

[[maybe_unused]] void* open_plugin() {
  constexpr const char* kName = "libdemi_cuda.so";
  const std::string beside = folder_of_this_library() + kName;
  if (void* handle = dlopen(beside.c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
  return dlopen(kName, RTLD_NOW | RTLD_LOCAL);
}

Loaded load() {
#if !defined(DEMI_CUDA_BUILT)
  return {nullptr, "not built: no nvcc was found, or DEMI_CUDA is OFF"};
#else
  if (!dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL))
    return {nullptr, "no NVIDIA driver (libcuda.so.1) on this machine"};
  void* plugin = open_plugin();
  if (!plugin) return {nullptr, std::string("libdemi_cuda.so cannot be opened: ") + dlerror()};
  using Entry = const CudaKernels* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(plugin, "demi_cuda_kernels"));
  const CudaKernels* kernels = entry ? entry() : nullptr;
  if (!kernels || kernels->layout != kStepLayout)
    return {nullptr, "libdemi_cuda.so is of another build"};
  return {kernels, ""};
#endif
}

}  // namespace

const CudaKernels* kernels_of(const CudaKernels& plugin, std::string* why) {
  const char* complaint = plugin.decline();
  if (why) *why = complaint ? complaint : "one launch a pass, libdemi_cuda.so";
  return complaint ? nullptr : &plugin;
}

const CudaKernels* cuda_kernels(std::string* why) {
  static const Loaded loaded = load();
  if (loaded.kernels) return kernels_of(*loaded.kernels, why);
  if (why) *why = loaded.why;
  return nullptr;
}

}  // namespace demi::kernels
