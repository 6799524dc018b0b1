#pragma once

#include <cstdint>

#include "demi/kernels/lanes.h"
#include "demi/kernels/storage.h"

// What kernels that are written once for float and for the vectors of an instruction set are made
// of. The including file defines, before it includes this, for Wide, which is float or its Vector
// (reference/wide.h, cpu/wide.h):
//
//   kWidthOf<Wide>                              elements of a vector
//   get<storage>(Wide, array, i[, count])       elements i and following; those from count on are 0
//   put<storage>(array, i, x[, count])          and back, rounded
//   get_float, put_float                        the same of float
//   rounded<storage>(x)                         what put and get make of x
//
// Nothing here is a template of the standard library or otherwise weak: the linker would keep one
// instruction set's copy for all. Internal linkage.
namespace demi::kernels {
namespace {

/// body(V(), i) for each full vector of the first n elements, body(V(), i, count) for the rest.
template <class Wide, class Body>
inline __attribute__((always_inline)) void each(std::int64_t n, Body body) {
  std::int64_t i = 0;
  for (; i + kWidthOf<Wide> <= n; i += kWidthOf<Wide>) body(Wide(0.0f), i);
  constexpr bool kHasRest = kWidthOf<Wide> != 1;
  if constexpr (kHasRest)
    if (i < n) body(Wide(0.0f), i, static_cast<int>(n - i));
}

inline void clear(float* array, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) array[i] = 0.0f;
}

template <class V, class... Some>
inline void add_float(float* array, std::int64_t i, V x, Some... some) {
  put_float(array, i, get_float(V(0.0f), array, i, some...) + x, some...);
}

/// Terms of `count` sums.
template <class V, int count>
struct Terms {
  V of[count];
};

/// The sums of what act(V(), i[, count]) gives for i = begin and the n - 1 following, in this order
/// on each path: kLanes sums of every kLanes-th, added up by halving.
template <class Wide, int count, class Act>
inline void sum_terms(std::int64_t begin, std::int64_t n, float (&result)[count], Act act) {
  constexpr std::int64_t kVectors = kLanes / kWidthOf<Wide>;
  Wide sums[count][kVectors];
  for (auto& of_one : sums)
    for (Wide& sum : of_one) sum = Wide(0.0f);
  std::int64_t whole = 0;
  for (; whole + kLanes <= n; whole += kLanes)
    for (std::int64_t k = 0; k < kVectors; ++k) {
      const Terms<Wide, count> terms = act(Wide(0.0f), begin + whole + k * kWidthOf<Wide>);
      for (int s = 0; s < count; ++s) sums[s][k] = sums[s][k] + terms.of[s];
    }
  float lanes[count][kLanes], more[count][kLanes] = {};
  for (int s = 0; s < count; ++s)
    for (std::int64_t k = 0; k < kVectors; ++k) put_float(lanes[s], k * kWidthOf<Wide>, sums[s][k]);
  const std::int64_t left = n - whole;
  each<Wide>(left, [&](auto as, std::int64_t l, auto... some) {
    const Terms<Wide, count> terms = act(as, begin + whole + l, some...);
    for (int s = 0; s < count; ++s) put_float(more[s], l, terms.of[s]);
  });
  for (int s = 0; s < count; ++s) {
    for (std::int64_t l = 0; l < left; ++l) lanes[s][l] += more[s][l];
    for (int half = kLanes / 2; half > 0; half /= 2)
      for (int l = 0; l < half; ++l) lanes[s][l] += lanes[s][l + half];
    result[s] = lanes[s][0];
  }
}

}  // namespace
}  // namespace demi::kernels
