#pragma once

#include <cstdio>
#include <vector>

#include "demi/kernels/cuda_kernels.h"
#include "demi/kernels/testing/device_array.cuh"
#include "demi/kernels/testing/quantize_case.h"

// For programs that nvcc compiles.
namespace demi::kernels::testing {

/// Quantizes and dequantizes a case on the device; its arrays are moved there and back.
inline void quantize_on_device(const CudaKernels& kernels, QuantizeCase& of) {
  Quantization q = of.described();
  const DeviceArray from(q.from, of.from.bytes(), 0), to(q.to, of.to.bytes(), 0);
  const DeviceArray codes(q.codes, of.codes.size(), 0), scales(q.scales, of.scales.size(), 0);
  const DeviceArray tensor_scale(q.tensor_scale, sizeof(float), 0);
  const DeviceArray greatest(q.greatest, of.greatest.size() * sizeof(std::uint32_t), 0);
  q.from = from.data();
  q.to = to.data();
  q.codes = static_cast<std::uint8_t*>(codes.data());
  q.scales = scales.data();
  q.tensor_scale = static_cast<float*>(tensor_scale.data());
  q.greatest = static_cast<std::uint32_t*>(greatest.data());
  complain(kernels.quantize(q, nullptr));
  complain(kernels.dequantize(q, nullptr));
  check(cudaDeviceSynchronize(), "quantize");
  to.download(of.to.data());
  codes.download(of.codes.data());
  scales.download(of.scales.data());
  tensor_scale.download(&of.tensor_scale);
}

/// Whether codes, scales and numbers of each format have the reference's bits.
inline bool quantize_agrees(const CudaKernels& kernels) {
  bool same = true;
  for (const NarrowFormat format : kNarrowFormats)
    for (const Scaling scaling : kScalings)
      for (const bool down : {false, true})
        for (const bool by_chance : {false, true}) {
          if (is_nv(scaling) && format != NarrowFormat::e2m1) continue;
          const QuantizeShape shape{format, scaling, down, 140, 1031, Storage::fp32, by_chance};
          QuantizeCase expected(shape), seen(shape);
          expected.run(*cpu_kernels(Path::reference));
          quantize_on_device(kernels, seen);
          same = same && seen.codes == expected.codes && seen.scales == expected.scales &&
                 seen.to == expected.to && seen.tensor_scale == expected.tensor_scale;
        }
  std::printf("quantize: %s\n", same ? "same bits" : "DIFFERENT");
  return same;
}

}  // namespace demi::kernels::testing
