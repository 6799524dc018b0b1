#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>

// For programs that nvcc compiles.
namespace demi::kernels::testing {

inline void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

inline void complain(const char* complaint) {
  if (!complaint) return;
  std::printf("launch: %s\n", complaint);
  std::exit(1);
}

/// Device memory that starts `offset` bytes off a 256-byte boundary, as the host's array is
/// misaligned.
class DeviceArray {
 public:
  DeviceArray(const void* host, std::size_t bytes, std::size_t offset)
      : bytes_(bytes), offset_(offset) {
    check(cudaMalloc(&base_, bytes + offset + 1), "cudaMalloc");
    if (host) check(cudaMemcpy(data(), host, bytes, cudaMemcpyHostToDevice), "upload");
  }
  DeviceArray(DeviceArray&& other) noexcept
      : base_(other.base_), bytes_(other.bytes_), offset_(other.offset_) {
    other.base_ = nullptr;
  }
  DeviceArray& operator=(DeviceArray&&) = delete;
  ~DeviceArray() { cudaFree(base_); }
  void* data() const { return static_cast<std::byte*>(base_) + offset_; }
  void download(void* host) const {
    check(cudaMemcpy(host, data(), bytes_, cudaMemcpyDeviceToHost), "download");
  }

 private:
  void* base_ = nullptr;
  std::size_t bytes_, offset_;
};

}  // namespace demi::kernels::testing
