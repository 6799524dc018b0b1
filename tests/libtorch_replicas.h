#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <vector>

#if __has_include(<cuda_runtime_api.h>)
#include <torch/nn/parallel/data_parallel.h>
#endif

namespace demi {

/// What LibTorch's own replicas of a module make of one input each, on the CPU; empty where there
/// are no CUDA headers, which LibTorch's header of them includes.
template <class Impl>
std::vector<at::Tensor> outputs_of_replicas([[maybe_unused]] const std::shared_ptr<Impl>& module,
                                            [[maybe_unused]] std::vector<at::Tensor> inputs) {
#if __has_include(<cuda_runtime_api.h>)
  const std::vector<c10::Device> devices(inputs.size(), c10::kCPU);
  auto replicas = torch::nn::parallel::replicate(module, devices);
  return torch::nn::parallel::parallel_apply(replicas, inputs, devices);
#else
  return {};
#endif
}

}  // namespace demi
