#pragma once

#include <cstdio>
#include <vector>

#include "demi/kernels/cuda_kernels.h"
#include "demi/kernels/testing/batch_norm_case.h"
#include "demi/kernels/testing/device_array.cuh"

// For programs that nvcc compiles.
namespace demi::kernels::testing {

/// Runs a pass on the device: all arrays are moved there, and those that it writes back.
inline void run_on_device(const CudaKernels& kernels, NormCase& of, BatchNormPass pass) {
  BatchNorm norm = of.described(pass);
  std::vector<DeviceArray> arrays;
  arrays.reserve(16);
  const auto moved = [&](auto& pointer, std::size_t bytes) {
    if (!pointer) return static_cast<DeviceArray*>(nullptr);
    DeviceArray& array = arrays.emplace_back(pointer, bytes, 0);
    pointer = static_cast<std::remove_reference_t<decltype(pointer)>>(array.data());
    return &array;
  };
  const auto channels = static_cast<std::size_t>(norm.channels) * sizeof(float);
  moved(norm.input, of.x.bytes());
  moved(norm.add, of.add.bytes());
  for (const float** one : {&norm.mean, &norm.scale, &norm.shift, &norm.mean_gradient, &norm.slope})
    moved(*one, channels);
  moved(norm.output_gradient, of.dy.bytes());
  auto& sums = pass == BatchNormPass::statistics ? of.statistics : of.gradient_sums;
  DeviceArray* const y = moved(norm.output, of.y.bytes());
  DeviceArray* const chosen = moved(norm.chosen, of.chosen.size());
  DeviceArray* const g = moved(norm.add_gradient, of.g.bytes());
  DeviceArray* const dx = moved(norm.input_gradient, of.dx.bytes());
  DeviceArray* const all = moved(norm.sums, sums.size() * sizeof(float));
  complain(kernels.batch_norm(norm, pass, pieces_of(norm, pass), nullptr));
  check(cudaDeviceSynchronize(), "batch norm");
  if (y) y->download(of.y.data());
  if (chosen) chosen->download(of.chosen.data());
  if (g) g->download(of.g.data());
  if (dx) dx->download(of.dx.data());
  if (all) all->download(sums.data());
}

/// Whether each pass has the reference's bits, with channels last.
inline bool batch_norm_agrees(const CudaKernels& kernels) {
  bool same = true;
  for (const NormShape& shape : channels_last_shapes()) {
    NormCase expected(shape), seen(shape);
    expected.run_all(*cpu_kernels(Path::reference));
    for (const auto pass : NormCase::kPasses) run_on_device(kernels, seen, pass);
    same = same && seen.wrote_as(expected);
  }
  std::printf("batch norm: %s\n", same ? "same bits" : "DIFFERENT");
  return same;
}

}  // namespace demi::kernels::testing
