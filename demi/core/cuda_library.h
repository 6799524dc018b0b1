#pragma once

#include <string>

#include "demi/core/export.h"

namespace demi {

/// LibTorch's CUDA part, loaded at run time so that one build serves machines with and without a
/// GPU.
struct CudaLibrary {
  bool loaded = false;
  std::string reason;  // why it is not: no driver, not part of this LibTorch, set to off
};

/// Loads libtorch_cuda.so at the first call where an NVIDIA driver (libcuda.so.1) is present, and
/// never twice. Takes about 0.2 s where it loads, microseconds where there is no driver.
/// DEMI_CUDA_LIBRARY=off keeps it out. Thread safe. Autocast kernels of ours must be registered
/// after this call: libtorch_cuda registers some of its own when it loads.
DEMI_API const CudaLibrary& load_cuda();

}  // namespace demi
