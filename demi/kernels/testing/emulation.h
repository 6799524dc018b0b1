#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "demi/kernels/cross_entropy.h"
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
    std::vector<CarryOf<Body>> carried(kThreads);
    for (std::int64_t b = thread_blocks - 1; b >= 0; --b) {
      for (int p = 0; p < Body::phases && !ends<Body>(p, *shared); ++p) {
        for (int t = kThreads - 1; t >= 0; --t)
          run_phase<Body>(p, table, block_of<Body>(table, b), t, *shared,
                          carried[static_cast<std::size_t>(t)]);
      }
    }
  }
};

/// The rows of a launch, likewise.
inline void run_rows(const CrossEntropyRows& of) {
  with_body(of, [&](auto body) {
    using Body = decltype(body);
    typename Body::Shared shared;
    for (std::int64_t row = of.rows - 1; row >= 0; --row)
      for (int p = 0; p < Body::phases; ++p)
        for (int t = Body::kThreads - 1; t >= 0; --t) Body::phase(p, of, row, t, shared);
  });
}

}  // namespace
}  // namespace demi::kernels::cuda
