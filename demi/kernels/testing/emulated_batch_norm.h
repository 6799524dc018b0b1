#pragma once

#include <cstdint>
#include <memory>

#include "demi/kernels/cuda/batch_norm.h"

// The device's source for batch normalisation on the host, as emulation.h runs that of the step.
namespace demi::kernels::cuda {
namespace {

/// A pass.
inline void run_batch_norm(const BatchNorm& norm, BatchNormPass pass) {
  const std::int64_t count = pieces_of(norm, pass);
  with_batch_norm(norm, pass, [&](auto body) {
    using Body = decltype(body);
    for (std::int64_t b = Body::thread_blocks(norm, count) - 1; b >= 0; --b)
      for (int t = Body::kThreads - 1; t >= 0; --t) Body::run(norm, count, b, t);
  });
}

/// The sums of a pass joined.
template <class Join>
void run_join(const BatchNorm& norm, const typename Join::Arguments& to) {
  const auto shared = std::make_unique<typename Join::Shared>();
  for (std::int64_t b = Join::thread_blocks(norm) - 1; b >= 0; --b)
    for (int p = 0; p < Join::phases; ++p)
      for (int t = Join::kThreads - 1; t >= 0; --t) Join::phase(p, norm, to, b, t, *shared);
}

}  // namespace
}  // namespace demi::kernels::cuda
