#pragma once

#include <cstdint>

#include "demi/kernels/cpu/arrays.h"
#include "demi/kernels/cpu/words.h"

// What quantize_loops.h needs of vectors. Included after the file that defines Vector; internal
// linkage.
namespace demi::kernels {
namespace {

template <class W>
inline constexpr int kWordLanes = kWidth;

template <class W>
inline WordVector codes_at(const std::uint8_t* from) {
  return words_at(from);
}
inline void put_codes(std::uint8_t* to, WordVector codes) { store_codes(to, codes); }
inline std::uint32_t greatest_lane(WordVector words) {
  return greatest(std::bit_cast<Vector::Bits>(words));
}

}  // namespace
}  // namespace demi::kernels

#include "demi/kernels/quantize_loops.h"  // IWYU pragma: export
