#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "demi/core/export.h"
#include "lab/bench/square_product.h"

namespace demi::bench {

/// The highest rates of a device, as measured: products of one dtype and copies.
struct Roofline {
  double tflops = 0;         // of the fastest product that was measured
  double copy_gb_per_s = 0;  // of a plain copy, reads and writes counted; GB are 10^9 bytes
};

/// The rate in TFLOP/s that the roofline allows work of so many operations and bytes: the rate of
/// products, or what its bytes let through if that is less (Williams, Waterman and Patterson 2009,
/// "Roofline").
DEMI_API double attainable_tflops(const Roofline& roofline, double flop, double bytes);

/// Reads and writes of a plain copy between two tensors that no cache holds, 10^9 bytes a second:
/// the best of five.
DEMI_API double copy_gb_per_s(c10::Device device);

/// A rate of products.
struct ProductRate {
  double tflops = 0;  // 10^12 multiplications and additions a second
  int64_t size = 0;   // of the matrices with which it was reached
};

/// The highest rate of products of that kind, over sizes that double from 256 on as long as the
/// next one is foreseen to end within `seconds`, up to `most`. Takes about that long. Throws
/// TrainingError if the smallest product is wrong (error_bound).
DEMI_API ProductRate best_rate(const ProductKind& kind, c10::Device device, double seconds,
                               int64_t most = 16384);

}  // namespace demi::bench
