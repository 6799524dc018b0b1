#pragma once

#include <c10/core/Device.h>

#include <string>

#include "demi/core/export.h"
#include "demi/distributed/nccl/plugin.h"

namespace demi::distributed {

/// LibTorch's NCCL backend, which is opened at run time: libdemi_nccl.so in libdemi's folder.
struct Nccl {
  MakeNccl* make = nullptr;
  std::string why;  // the reason that there is none; empty if there is
  /// The type of the devices whose tensors it sends. A test's stand-in may serve another type.
  c10::DeviceType device = c10::kCUDA;
};

/// Opens it at the first call, if LibTorch's part for CUDA can be. Any thread.
DEMI_API const Nccl& load_nccl();

/// The library in `file`. It is declined if it was compiled with the header of another NCCL than
/// LibTorch was: c10d's options hold a struct of that header, whose size differs.
DEMI_API Nccl open_nccl(const std::string& file);

/// Whether tensors of the device go through it, and not through Gloo. Opens nothing.
DEMI_API bool is_for_nccl(c10::Device device);

/// Makes load_nccl() return `nccl` until this is called with null; for tests. Must not be called
/// while a group is alive.
DEMI_API void stand_in_for_nccl(const Nccl* nccl);

}  // namespace demi::distributed
