#pragma once

#include <cstdint>
#include <cstring>

#include "demi/kernels/codecs/words.h"

// What quantize_loops.h needs of one word. Included behind the reference's array kernels; internal
// linkage.
namespace demi::kernels {
namespace {

template <class W>
inline constexpr int kWordLanes = 1;

template <class V, class T>
inline V load_vector(const T* from) {
  V v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
inline void store_floats(float* to, float x) { *to = x; }
template <class W>
inline std::uint32_t codes_at(const std::uint8_t* from) {
  return *from;
}
inline void put_codes(std::uint8_t* to, std::uint32_t code) {
  *to = static_cast<std::uint8_t>(code);
}
inline std::uint32_t greatest_lane(std::uint32_t word) { return word; }

}  // namespace
}  // namespace demi::kernels

#include "demi/kernels/quantize_loops.h"  // IWYU pragma: export
