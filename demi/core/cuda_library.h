#pragma once

#include <string>

#include "demi/core/export.h"

namespace demi {

/// LibTorch's CUDA part, loaded at run time so that one build serves machines with and without a
/// GPU.
struct CudaLibrary {
  bool loaded = false;
  /// Why it is not loaded: no driver, not part of this LibTorch, switched off. "" if loaded.
  std::string reason;
};

/// Loads libtorch_cuda.so at the first call, if an NVIDIA driver (libcuda.so.1) is present, and
/// never twice. Loading takes about 0.2 s; without a driver the call takes microseconds.
/// DEMI_CUDA_LIBRARY=off prevents loading. Any thread. demi's autocast kernels must be registered
/// after this call, because libtorch_cuda registers some of its own when it loads.
DEMI_API const CudaLibrary& load_cuda();

}  // namespace demi
