#pragma once

/// Functions that run on the host and, compiled by nvcc, on the device too.
#if defined(__CUDACC__)
#define DEMI_HOST_DEVICE __host__ __device__ __forceinline__
/// A loop whose counter indexes arrays that would not be in registers otherwise.
#define DEMI_UNROLLED _Pragma("unroll")
#else
#define DEMI_UNROLLED
#define DEMI_HOST_DEVICE inline __attribute__((always_inline))
#endif
