#pragma once

#include <cstdint>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace demi::distributed {

/// Makes LibTorch's NCCL backend, with one reference, which the caller takes over. It may throw.
/// `prefix`: of its keys in the store.
using MakeNccl = c10d::Backend*(c10d::Store& store, const char* prefix, int rank, int world_size,
                                std::int64_t timeout_ms);

/// The interface of libdemi_nccl.so. Its symbol demi_nccl_plugin is a function without arguments
/// that returns a const NcclPlugin*. Versions: major << 32 | minor << 16 | patch, as
/// torch::cuda::nccl::version() writes them.
struct NcclPlugin {
  std::uint64_t header = 0;    // of the nccl.h that it was compiled with
  std::uint64_t libtorch = 0;  // of the one that LibTorch was compiled with
  MakeNccl* make = nullptr;
};

}  // namespace demi::distributed
