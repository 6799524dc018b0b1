#pragma once

#include <string>

#include "demi/core/export.h"
#include "demi/distributed/nccl/plugin.h"

namespace demi::distributed {

/// LibTorch's NCCL backend, which is opened at run time: libdemi_nccl.so beside libdemi.
struct Nccl {
  MakeNccl* make = nullptr;
  std::string why;  // there is none; empty if there is
};

/// Opens it at the first call, if LibTorch's part for CUDA can be. Any thread.
DEMI_API const Nccl& load_nccl();

/// The library in `file`. It is declined if it was compiled with the header of another NCCL than
/// LibTorch was: c10d's options hold a struct of that header, whose size differs.
DEMI_API Nccl open_nccl(const std::string& file);

/// For tests: load_nccl() returns `nccl` until it is null. Not while a group is alive.
DEMI_API void stand_in_for_nccl(const Nccl* nccl);

}  // namespace demi::distributed
