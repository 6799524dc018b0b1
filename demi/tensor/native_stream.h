#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace demi::tensor {

/// The native handle of the device's current stream (a cudaStream_t), without a link to LibTorch's
/// CUDA part. Null on the CPU.
inline void* native_stream(c10::Device device) {
  if (device.is_cpu()) return nullptr;
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

}  // namespace demi::tensor
