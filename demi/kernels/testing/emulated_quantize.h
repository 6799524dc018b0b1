#pragma once

#include <cstdint>
#include <memory>

#include "demi/kernels/cuda/quantize.h"

// The device's source for quantized arrays on the host, as emulation.h runs that of the step.
namespace demi::kernels::cuda {
namespace {

inline void run_quantize(const Quantization& q) {
  if (finds_greatest(q)) {
    for (std::int64_t i = 0; i < greatest_words(q); ++i) q.greatest[i] = 0;
    const auto shared = std::make_unique<FindGreatest::Shared>();
    for (std::int64_t b = thread_blocks_of(q) - 1; b >= 0; --b)
      for (int p = 0; p < FindGreatest::phases; ++p)
        for (int t = kQuantizeThreads - 1; t >= 0; --t) FindGreatest::phase(p, q, b, t, *shared);
  }
  with_quantize(q, [&](auto body) {
    for (std::int64_t b = thread_blocks_of(q) - 1; b >= 0; --b)
      for (int t = kQuantizeThreads - 1; t >= 0; --t) decltype(body)::run(q, b, t);
  });
}

inline void run_dequantize(const Quantization& q) {
  with_dequantize(q, [&](auto body) {
    for (std::int64_t b = thread_blocks_of(q) - 1; b >= 0; --b)
      for (int t = kQuantizeThreads - 1; t >= 0; --t) decltype(body)::run(q, b, t);
  });
}

}  // namespace
}  // namespace demi::kernels::cuda
