// libdemi_cuda.so: the CUDA kernels, with the CUDA runtime linked statically (it shares the primary
// context with LibTorch's, and depends on no library but the driver's). Opened by loader.cpp.
// Compiled with --fmad=false: FMA only where written.
#include <cuda_runtime.h>

#include <atomic>

#include "demi/kernels/cuda/launch.h"
#include "demi/kernels/cuda_kernels.h"

namespace demi::kernels::cuda {
namespace {

std::atomic<std::int64_t> launches{0};

template <class Body>
__global__ void __launch_bounds__(kThreads) run(const StepTable table) {
  __shared__ typename Body::Shared shared;
#pragma unroll
  for (int p = 0; p < Body::phases; ++p) {
    if (p > 0) __syncthreads();
    Body::phase(p, table, blockIdx.x, threadIdx.x, shared);
  }
}

struct DeviceLauncher {
  cudaStream_t stream;
  cudaError_t error = cudaSuccess;

  template <class Body>
  void run(std::int64_t thread_blocks, const StepTable& table) {
    if (error != cudaSuccess) return;
    launches.fetch_add(1, std::memory_order_relaxed);
    cuda::run<Body><<<static_cast<unsigned>(thread_blocks), kThreads, 0, stream>>>(table);
    error = cudaGetLastError();
  }
  const char* complaint() const {
    return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
  }
};

template <auto launch>
const char* pass(const StepTable& table, void* stream) {
  DeviceLauncher launcher{static_cast<cudaStream_t>(stream)};
  launch(launcher, table);
  return launcher.complaint();
}

template <class Body>
void launch_one(DeviceLauncher& launcher, const StepTable& table) {
  launcher.run<Body>(1, table);
}

const char* decline() {
  int count = 0, device = 0, major = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count == 0) error = cudaErrorNoDevice;
  if (error == cudaSuccess) error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (error != cudaSuccess) {
    cudaGetLastError();  // not left for the next caller
    return cudaGetErrorString(error);
  }
  if (major < 8) return "the device's compute capability is below 8.0";
  cudaFuncAttributes attributes;
  error = cudaFuncGetAttributes(&attributes, run<Measure>);
  if (error != cudaSuccess) {
    cudaGetLastError();
    return "this build has no code for the device's architecture";
  }
  return nullptr;
}

constexpr CudaKernels kKernels = {pass<launch_measure<DeviceLauncher>>,
                                  pass<launch_one<Finish<true, false>>>,
                                  pass<launch_one<Finish<false, true>>>,
                                  pass<launch_one<Finish<true, true>>>,
                                  pass<launch_update<DeviceLauncher>>,
                                  pass<launch_apply_trust<DeviceLauncher>>,
                                  pass<launch_step<DeviceLauncher>>,
                                  [] { return launches.load(); },
                                  decline,
                                  kStepLayout};

}  // namespace
}  // namespace demi::kernels::cuda

extern "C" __attribute__((visibility("default"))) const demi::kernels::CudaKernels*
demi_cuda_kernels() {
  return &demi::kernels::cuda::kKernels;
}
