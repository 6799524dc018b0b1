#pragma once

#include <cstdint>
#include <cstring>

#include "demi/kernels/codecs/codec.h"
#include "demi/kernels/codecs/words.h"
#include "demi/kernels/cpu/vector.h"

// Registers of words for the codecs' formulas, in and out of arrays of 8, 16 and 32 bits. The types
// are GCC's and clang's vectors. Internal linkage.
namespace demi::kernels {
namespace {

inline constexpr int kWidth = Vector::width;
/// Registers of a group.
inline constexpr int kRegisters = kCodeGroup / kWidth;

using WordVector = std::uint32_t __attribute__((vector_size(4 * kWidth)));
using WholeVector = std::int32_t __attribute__((vector_size(4 * kWidth)));
using FloatVector = float __attribute__((vector_size(4 * kWidth)));

template <>
struct LanesOf<WordVector> {
  using Signed = WholeVector;
  using Float = FloatVector;
  static DEMI_HOST_DEVICE FloatVector to_float(WholeVector whole) {
    return __builtin_convertvector(whole, FloatVector);
  }
  static DEMI_HOST_DEVICE WholeVector to_whole(FloatVector x) {
    return __builtin_convertvector(x, WholeVector);
  }
};
template <>
struct WordsOf<FloatVector> {
  using Words = WordVector;
};
template <>
struct WordsOf<WholeVector> {
  using Words = WordVector;
};

DEMI_HOST_DEVICE FloatVector square_root(FloatVector x) {
  return std::bit_cast<FloatVector>(square_root(std::bit_cast<Vector>(x)).v);
}

template <class V, class T>
DEMI_HOST_DEVICE V load_vector(const T* from) {
  V v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

template <class Code>
DEMI_HOST_DEVICE WordVector words_at(const Code* from) {
  return std::bit_cast<WordVector>(load_words(from));
}
/// The lower 16 or 8 bits of each.
template <class Code>
DEMI_HOST_DEVICE void store_codes(Code* to, WordVector words) {
  store_words(to, std::bit_cast<Vector::Bits>(words));
}
DEMI_HOST_DEVICE void store_floats(float* to, FloatVector x) { std::memcpy(to, &x, sizeof x); }

}  // namespace
}  // namespace demi::kernels
