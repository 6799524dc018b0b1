#include "demi/core/cuda_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string_view>

namespace demi {
namespace {

CudaLibrary load() {
  const char* wish = std::getenv("DEMI_CUDA_LIBRARY");
  if (wish && std::string_view(wish) == "off") return {false, "DEMI_CUDA_LIBRARY is off"};
  if (!dlopen("libcuda.so.1", RTLD_LAZY | RTLD_GLOBAL))
    return {false, "no NVIDIA driver (libcuda.so.1 is not here)"};
  // Loaded for its effect: that registers the CUDA kernels with LibTorch's dispatcher. Its symbols
  // are not needed by name.
  if (dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_GLOBAL)) return {true, ""};
  const char* why = dlerror();
  return {false, std::string("libtorch_cuda.so does not load: ") + (why ? why : "unknown reason")};
}

}  // namespace

const CudaLibrary& load_cuda() {
  static const CudaLibrary library = load();
  return library;
}

}  // namespace demi
