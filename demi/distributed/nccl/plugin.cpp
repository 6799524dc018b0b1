// LibTorch's NCCL backend. A library of its own, since it links libtorch_cuda, which libdemi opens
// only where there is a driver.
#include "demi/distributed/nccl/plugin.h"

#include <nccl.h>
#include <torch/csrc/cuda/nccl.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace demi::distributed {
namespace {

c10d::Backend* make(c10d::Store& store, const char* prefix, int rank, int world_size,
                    std::int64_t timeout_ms) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = std::chrono::milliseconds(timeout_ms);
  const auto held = c10::intrusive_ptr<c10d::Store>::reclaim_copy(&store);
  auto named = c10::make_intrusive<c10d::PrefixStore>(prefix, held);
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(named, rank, world_size, options).release();
}

}  // namespace
}  // namespace demi::distributed

extern "C" __attribute__((visibility("default"))) const demi::distributed::NcclPlugin*
demi_nccl_plugin() {
  static const demi::distributed::NcclPlugin plugin{
      (std::uint64_t{NCCL_MAJOR} << 32) | (std::uint64_t{NCCL_MINOR} << 16) | NCCL_PATCH,
      torch::cuda::nccl::version(), &demi::distributed::make};
  return &plugin;
}
