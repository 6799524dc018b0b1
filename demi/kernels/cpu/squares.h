#pragma once

#include <cstdint>

#include "demi/kernels/cpu/memory.h"
#include "demi/kernels/lanes.h"

// The sum of squares in the order of lanes.h, a group of 32 lanes at a time. Internal linkage.
namespace demi::kernels {
namespace {

struct Lanes {
  static constexpr int count = 2 * kLanes / Vector::width;  // of registers of doubles
  Vector::Doubles sum[count];

  Lanes() {
    for (auto& s : sum) s = no_doubles();
  }
  void add_square_of(int v, Vector x) {
    sum[2 * v] = add_square(sum[2 * v], low_doubles(x));
    sum[2 * v + 1] = add_square(sum[2 * v + 1], high_doubles(x));
  }
  void operator+=(const Lanes& other) {
    for (int k = 0; k < count; ++k) sum[k] = add(sum[k], other.sum[k]);
  }
  /// As fold() of all lanes, a register at a time as long as there are several.
  double total() const {
    Lanes half = *this;
    for (int n = count / 2; n > 0; n /= 2) {
      for (int k = 0; k < n; ++k) half.sum[k] = add(half.sum[k], half.sum[k + n]);
    }
    double lanes[Vector::width / 2];
    store(lanes, half.sum[0]);
    fold(lanes, Vector::width / 2);
    return lanes[0];
  }
};

/// Squares of the n <= kChunk elements that get(i) and get(i, m) load, added to `block`; see(x) is
/// shown each vector.
template <class Get, class GetFirst, class See>
inline __attribute__((always_inline)) void add_chunk(Lanes& block, int n, Get get,
                                                     GetFirst get_first, See see) {
  Lanes chunk;
  for (int g = 0; g < kRow && g < n; g += kLanes) {
    Lanes group;
    for (int r = g; r < n; r += kRow) {
      for (int v = 0; v < kLanes / Vector::width; ++v) {
        const int i = r + v * Vector::width;
        if (i >= n) break;
        const Vector x = i + Vector::width <= n ? get(i) : get_first(i, n - i);
        see(x);
        group.add_square_of(v, x);
      }
    }
    chunk += group;
  }
  block += chunk;
}

/// add_chunk of kChunk elements without its bounds: nearly all work is such, and loops of a fixed
/// length unroll.
template <class Get, class GetFirst, class See>
inline __attribute__((always_inline)) void add_full_chunk(Lanes& block, Get get, GetFirst,
                                                          See see) {
  Lanes chunk;
  for (int g = 0; g < kRow; g += kLanes) {
    Lanes group;
    for (int r = g; r < kChunk; r += kRow) {
      for (int v = 0; v < kLanes / Vector::width; ++v) {
        const Vector x = get(r + v * Vector::width);
        see(x);
        group.add_square_of(v, x);
      }
    }
    chunk += group;
  }
  block += chunk;
}

}  // namespace
}  // namespace demi::kernels
