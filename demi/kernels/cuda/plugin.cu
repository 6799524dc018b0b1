// libdemi_cuda.so: the CUDA kernels, with the CUDA runtime linked statically (it shares the primary
// context with LibTorch's, and depends on no library but the driver's). Opened by loader.cpp.
// Compiled with --fmad=false: FMA only where written.
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>

#include "demi/kernels/cuda/batch_norm.h"
#include "demi/kernels/cuda/launch.h"
#include "demi/kernels/cuda/quantize.h"
#include "demi/kernels/cuda_kernels.h"

namespace demi::kernels::cuda {
namespace {

std::atomic<std::int64_t> launches{0}, uploads{0};

/// Phases of which the compiler makes a copy each: a body with rows among them has too many.
template <class Body>
constexpr int unrolled() {
  if constexpr (requires { Body::kOwn; }) return 1;
  return Body::phases;
}
template <class Body>
__global__ void __launch_bounds__(kThreads) run(const StepTable table) {
  __shared__ typename Body::Shared shared;
  CarryOf<Body> carry;
  constexpr int copies = unrolled<Body>();
#pragma unroll copies
  for (int p = 0; p < Body::phases; ++p) {
    if (p > 0) __syncthreads();
    if (ends<Body>(p, shared)) return;  // all threads of the block, or none
    run_phase<Body>(p, table, block_of<Body>(table, blockIdx.x), threadIdx.x, shared, carry);
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

__global__ void run_update_scale(const LossScaleUpdate update) { advance(update); }

const char* update_scale(const LossScaleUpdate& update, void* stream) {
  run_update_scale<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(update);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

template <class Body>
__global__ void __launch_bounds__(Body::kThreads) run_cross_entropy(const CrossEntropyRows of) {
  __shared__ typename Body::Shared shared;
#pragma unroll
  for (int p = 0; p < Body::phases; ++p) {
    if (p > 0) __syncthreads();
    Body::phase(p, of, blockIdx.x, threadIdx.x, shared);
  }
}

const char* cross_entropy(const CrossEntropyRows& of, void* stream) {
  if (of.rows == 0) return nullptr;
  with_body(of, [&](auto body) {
    using Body = decltype(body);
    run_cross_entropy<Body>
        <<<static_cast<unsigned>(of.rows), Body::kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
            of);
  });
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

template <class Body>
__global__ void __launch_bounds__(Body::kThreads)
    run_batch_norm(const BatchNorm norm, std::int64_t pieces) {
  Body::run(norm, pieces, blockIdx.x, threadIdx.x);
}

const char* batch_norm(const BatchNorm& norm, BatchNormPass pass, std::int64_t pieces,
                       void* stream) {
  if (pieces == 0) return nullptr;
  with_batch_norm(norm, pass, [&](auto body) {
    using Body = decltype(body);
    const auto blocks = static_cast<unsigned>(Body::thread_blocks(norm, pieces));
    run_batch_norm<Body>
        <<<blocks, Body::kThreads, 0, static_cast<cudaStream_t>(stream)>>>(norm, pieces);
  });
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

template <class Join>
__global__ void __launch_bounds__(Join::kThreads)
    run_join(const BatchNorm norm, const typename Join::Arguments to) {
  __shared__ typename Join::Shared shared;
#pragma unroll 1
  for (int p = 0; p < Join::phases; ++p) {
    if (p > 0) __syncthreads();
    Join::phase(p, norm, to, blockIdx.x, threadIdx.x, shared);
  }
}

template <class Join>
const char* join(const BatchNorm& norm, const typename Join::Arguments& to, void* stream) {
  const auto blocks = static_cast<unsigned>(Join::thread_blocks(norm));
  run_join<Join><<<blocks, Join::kThreads, 0, static_cast<cudaStream_t>(stream)>>>(norm, to);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

__global__ void __launch_bounds__(kQuantizeThreads) run_greatest(const Quantization q) {
  __shared__ FindGreatest::Shared shared;
#pragma unroll
  for (int p = 0; p < FindGreatest::phases; ++p) {
    if (p > 0) __syncthreads();
    FindGreatest::phase(p, q, blockIdx.x, threadIdx.x, shared);
  }
}

template <class Body>
__global__ void __launch_bounds__(kQuantizeThreads) run_quantized(const Quantization q) {
  Body::run(q, blockIdx.x, threadIdx.x);
}

template <class Body>
void launch_quantized(const Quantization& q, void* stream) {
  run_quantized<Body><<<static_cast<unsigned>(thread_blocks_of(q)), kQuantizeThreads, 0,
                        static_cast<cudaStream_t>(stream)>>>(q);
}

const char* quantize(const Quantization& q, void* stream) {
  if (units_of(q) == 0) return nullptr;
  if (finds_greatest(q)) {
    const auto bytes = static_cast<std::size_t>(greatest_words(q)) * sizeof(std::uint32_t);
    const cudaError_t error =
        cudaMemsetAsync(q.greatest, 0, bytes, static_cast<cudaStream_t>(stream));
    if (error != cudaSuccess) return cudaGetErrorString(error);
    run_greatest<<<static_cast<unsigned>(thread_blocks_of(q)), kQuantizeThreads, 0,
                   static_cast<cudaStream_t>(stream)>>>(q);
  }
  with_quantize(q, [&](auto body) { launch_quantized<decltype(body)>(q, stream); });
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

const char* dequantize(const Quantization& q, void* stream) {
  if (units_of(q) == 0) return nullptr;
  with_dequantize(q, [&](auto body) { launch_quantized<decltype(body)>(q, stream); });
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

// The bytes of a table as a kernel's argument. CUDA 12.1 raised the limit from 4 KB to 32 KB.
constexpr std::size_t kFewBytes = 3968;
constexpr std::size_t kManyBytes = CUDART_VERSION >= 12010 ? 32000 : kFewBytes;

template <std::size_t capacity>
struct Payload {
  std::uint32_t words[capacity / 4];
};

/// One word a thread: reads of an argument at different places within a warp go one by one, so the
/// work is spread over many warps.
template <std::size_t capacity>
__global__ void write(std::uint32_t* to, unsigned words,
                      const __grid_constant__ Payload<capacity> from) {
  const unsigned i = blockIdx.x * kThreads + threadIdx.x;
  if (i < words) to[i] = from.words[i];
}

template <std::size_t capacity>
cudaError_t upload_piece(std::byte* to, const std::byte* from, std::size_t bytes,
                         cudaStream_t stream) {
  Payload<capacity> payload;
  std::memcpy(payload.words, from, bytes);
  const auto words = static_cast<unsigned>(bytes / 4);
  uploads.fetch_add(1, std::memory_order_relaxed);
  write<capacity><<<(words + kThreads - 1) / kThreads, kThreads, 0, stream>>>(
      reinterpret_cast<std::uint32_t*>(to), words, payload);
  return cudaGetLastError();
}

// Drivers before 12.1 (525 to 529) take kernels of CUDA 12, but not their large arguments.
std::size_t most_bytes() {
  int driver = 0;
  cudaFuncAttributes attributes;
  const bool fits = cudaDriverGetVersion(&driver) == cudaSuccess && driver >= 12010 &&
                    cudaFuncGetAttributes(&attributes, write<kManyBytes>) == cudaSuccess;
  if (!fits) cudaGetLastError();  // not left for the next caller
  return fits ? kManyBytes : kFewBytes;
}

const char* upload(void* to, const void* from, std::size_t bytes, void* stream) {
  static const std::size_t most = most_bytes();
  for (std::size_t at = 0; at < bytes;) {
    const std::size_t piece = std::min(bytes - at, most);
    const auto send = piece <= kFewBytes ? upload_piece<kFewBytes> : upload_piece<kManyBytes>;
    const cudaError_t error =
        send(static_cast<std::byte*>(to) + at, static_cast<const std::byte*>(from) + at, piece,
             static_cast<cudaStream_t>(stream));
    if (error != cudaSuccess) return cudaGetErrorString(error);
    at += piece;
  }
  return nullptr;
}

bool capturing(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status) != cudaSuccess) {
    cudaGetLastError();  // the legacy stream, which cannot capture, while another one does
    return false;        // `status` is unspecified after an error
  }
  return status != cudaStreamCaptureStatusNone;
}

const char* complaint_of(cudaError_t error) {
  cudaGetLastError();  // not left for the next caller
  return cudaGetErrorString(error);
}

// Why `device`, the current one, cannot run the kernels; null if it can. The first call makes a
// context there.
const char* why_not(int device) {
  int major = 0;
  cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (error != cudaSuccess) return complaint_of(error);
  if (major < 8) return "the device's compute capability is below 8.0";
  cudaFuncAttributes attributes;
  error = cudaFuncGetAttributes(&attributes, run<Measure>);
  if (error != cudaSuccess) {
    cudaGetLastError();
    return "this build has no code for the device's architecture";
  }
  return nullptr;
}

// Each device is asked once.
const char* decline() {
  int count = 0, device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count == 0) error = cudaErrorNoDevice;
  if (error != cudaSuccess) return complaint_of(error);
  static std::mutex mutex;
  static std::map<int, const char*> answers;
  const std::lock_guard lock(mutex);
  const auto known = answers.find(device);
  if (known != answers.end()) return known->second;
  return answers.emplace(device, why_not(device)).first->second;
}

constexpr CudaKernels kKernels = {.layout = kStepLayout,
                                  .measure = pass<launch_measure<DeviceLauncher>>,
                                  .decide = pass<launch_decide<DeviceLauncher>>,
                                  .update = pass<launch_update<DeviceLauncher>>,
                                  .apply_trust = pass<launch_apply_trust<DeviceLauncher>>,
                                  .step = pass<launch_step<DeviceLauncher>>,
                                  .update_scale = update_scale,
                                  .cross_entropy = cross_entropy,
                                  .batch_norm = batch_norm,
                                  .batch_norm_statistics = join<JoinStatistics>,
                                  .batch_norm_gradients = join<JoinGradients>,
                                  .quantize = quantize,
                                  .dequantize = dequantize,
                                  .upload = upload,
                                  .capturing = capturing,
                                  .launches = [] { return launches.load(); },
                                  .uploads = [] { return uploads.load(); },
                                  .decline = decline};

}  // namespace
}  // namespace demi::kernels::cuda

extern "C" __attribute__((visibility("default"))) const demi::kernels::CudaKernels*
demi_cuda_kernels() {
  return &demi::kernels::cuda::kKernels;
}
