// Replaces libdemi_nccl.so, without LibTorch. Three libraries are built from this file, each of
// which is wrong in the way that its macro names.
#include <stdexcept>

#include "demi/distributed/nccl/plugin.h"

#ifndef DEMI_NCCL_is_empty

namespace {

constexpr std::uint64_t version(std::uint64_t major, std::uint64_t minor, std::uint64_t patch) {
  return major << 32 | minor << 16 | patch;
}

#ifdef DEMI_NCCL_differs
constexpr std::uint64_t kHeader = version(2, 28, 9);
#else
constexpr std::uint64_t kHeader = version(2, 30, 7);
#endif

c10d::Backend* make(c10d::Store&, const char*, int, int, std::int64_t) {
  throw std::runtime_error("no GPUs found\nwith a second line");
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const demi::distributed::NcclPlugin*
demi_nccl_plugin() {
  static const demi::distributed::NcclPlugin plugin{kHeader, version(2, 30, 7), &make};
  return &plugin;
}

#endif
