#pragma once

/// Functions that run on the host and, compiled by nvcc, on the device too.
#if defined(__CUDACC__)
#define DEMI_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define DEMI_HOST_DEVICE inline __attribute__((always_inline))
#endif
