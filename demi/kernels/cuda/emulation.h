#pragma once

#include <memory>

#include "demi/kernels/cuda/launch.h"

namespace demi::kernels::cuda {
namespace {

/// Runs the kernels' own source on the host, phase by phase; thread blocks and threads last to
/// first, since no result may depend on their order. For tests without a GPU.
struct HostLauncher {
  std::int64_t launches = 0;

  template <class Body>
  void run(std::int64_t thread_blocks, const StepTable& table) {
    ++launches;
    const auto shared = std::make_unique<typename Body::Shared>();
    for (std::int64_t b = thread_blocks - 1; b >= 0; --b) {
      for (int p = 0; p < Body::phases && !ends<Body>(p, *shared); ++p) {
        for (int t = kThreads - 1; t >= 0; --t) Body::phase(p, table, b, t, *shared);
      }
    }
  }
};

}  // namespace
}  // namespace demi::kernels::cuda
