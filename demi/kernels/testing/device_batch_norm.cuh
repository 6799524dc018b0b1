#pragma once

#include <cstdio>
#include <vector>

#include "demi/kernels/cuda_kernels.h"
#include "demi/kernels/testing/batch_norm_case.h"
#include "demi/kernels/testing/device_array.cuh"
#include "demi/kernels/testing/emulated_batch_norm.h"

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

/// A case's numbers of channels on the device.
class DeviceChannels {
 public:
  explicit DeviceChannels(ChannelCase& of) : of_(of) {
    for (std::vector<float>* one : all()) arrays_.emplace_back(one->data(), one->size() * 4, 0);
  }
  ChannelStatistics statistics() {
    ChannelStatistics to = of_.statistics();
    to.weight = at(0);
    to.bias = at(1);
    to.running_mean = at(2);
    to.running_var = at(3);
    to.channels = at(4);
    return to;
  }
  ChannelGradients gradients() {
    return {.channels = at(4), .corrections = at(5), .weight = at(6), .bias = at(7)};
  }
  void download() {
    check(cudaDeviceSynchronize(), "joined sums");
    for (std::size_t i = 0; i < arrays_.size(); ++i) arrays_[i].download(all()[i]->data());
  }

 private:
  std::vector<std::vector<float>*> all() {
    return {&of_.weight,   &of_.bias,        &of_.running_mean, &of_.running_var,
            &of_.channels, &of_.corrections, &of_.of_weight,    &of_.of_bias};
  }
  float* at(std::size_t i) { return static_cast<float*>(arrays_[i].data()); }

  ChannelCase& of_;
  std::vector<DeviceArray> arrays_;
};

/// Whether the sums that a case's passes have made are joined with the bits of the host.
inline bool joins_agree(const CudaKernels& kernels, NormCase& of) {
  ChannelCase expected(of.shape.channels), seen(of.shape.channels);
  BatchNorm norm = of.described(), there = norm;
  DeviceChannels channels(seen);
  const auto sums = [&](std::vector<float>& host) {
    norm.sums = host.data();
    return DeviceArray(host.data(), host.size() * 4, 0);
  };
  {
    const DeviceArray array = sums(of.statistics);
    there.sums = static_cast<float*>(array.data());
    cuda::run_join<cuda::JoinStatistics>(norm, expected.statistics());
    complain(kernels.batch_norm_statistics(there, channels.statistics(), nullptr));
    check(cudaDeviceSynchronize(), "statistics");
  }
  {
    const DeviceArray array = sums(of.gradient_sums);
    there.sums = static_cast<float*>(array.data());
    cuda::run_join<cuda::JoinGradients>(norm, expected.gradients());
    complain(kernels.batch_norm_gradients(there, channels.gradients(), nullptr));
    channels.download();
  }
  const bool of_batch = seen == expected;
  norm.sums = there.sums = nullptr;
  cuda::run_join<cuda::JoinStatistics>(norm, expected.statistics());
  complain(kernels.batch_norm_statistics(there, channels.statistics(), nullptr));
  channels.download();
  return of_batch && seen == expected;
}

/// Whether each pass has the reference's bits, with channels last.
inline bool batch_norm_agrees(const CudaKernels& kernels) {
  bool same = true;
  for (const NormShape& shape : channels_last_shapes()) {
    NormCase expected(shape), seen(shape);
    expected.run_all(*cpu_kernels(Path::reference));
    for (const auto pass : NormCase::kPasses) run_on_device(kernels, seen, pass);
    same = same && seen.wrote_as(expected) && joins_agree(kernels, expected);
  }
  std::printf("batch norm: %s\n", same ? "same bits" : "DIFFERENT");
  return same;
}

}  // namespace demi::kernels::testing
