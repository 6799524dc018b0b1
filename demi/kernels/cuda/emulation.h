#pragma once

#include <memory>

#include "demi/kernels/cuda/launch.h"

namespace demi::kernels::cuda {
namespace {

/// Runs the kernels' own source on the host, thread after thread, phase by phase. For tests without
/// a GPU.
struct HostLauncher {
  std::int64_t launches = 0;

  template <class Body>
  void run(std::int64_t thread_blocks, const StepTable& table) {
    ++launches;
    const auto shared = std::make_unique<typename Body::Shared>();
    for (std::int64_t b = 0; b < thread_blocks; ++b) {
      for (int p = 0; p < Body::phases; ++p) {
        for (int t = 0; t < kThreads; ++t) Body::phase(p, table, b, t, *shared);
      }
    }
  }
};

}  // namespace
}  // namespace demi::kernels::cuda
