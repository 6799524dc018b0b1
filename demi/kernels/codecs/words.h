#pragma once

#include <bit>
#include <cstdint>

#include "demi/kernels/host_device.h"

// The words that codecs work on: one (std::uint32_t), or as many as a register holds (a vector of
// GCC's and clang's, whose operators work on each of its elements), so that a formula stands in one
// place for all paths. Internal linkage.
namespace demi::kernels {
namespace {

/// The signed integers and FP32 numbers of as many bits, and the one as the other.
template <class W>
struct LanesOf;
template <>
struct LanesOf<std::uint32_t> {
  using Signed = std::int32_t;
  using Float = float;
  static DEMI_HOST_DEVICE float to_float(std::int32_t whole) { return static_cast<float>(whole); }
  static DEMI_HOST_DEVICE std::int32_t to_whole(float x) { return static_cast<std::int32_t>(x); }
};
/// The words of FP32 numbers, or of signed integers.
template <class T>
struct WordsOf;
template <>
struct WordsOf<float> {
  using Words = std::uint32_t;
};
template <>
struct WordsOf<std::int32_t> {
  using Words = std::uint32_t;
};

template <class W>
using Signed = typename LanesOf<W>::Signed;
template <class W>
using Float = typename LanesOf<W>::Float;
template <class T>
using UnsignedOf = typename WordsOf<T>::Words;

template <class W>
DEMI_HOST_DEVICE Signed<W> signed_of(W words) {
  return std::bit_cast<Signed<W>>(words);
}
template <class W>
DEMI_HOST_DEVICE Float<W> float_from(W bits) {
  return std::bit_cast<Float<W>>(bits);
}
template <class F>
DEMI_HOST_DEVICE UnsignedOf<F> bits_from(F x) {
  return std::bit_cast<UnsignedOf<F>>(x);
}

/// The whole number in FP32, rounded to nearest.
template <class I>
DEMI_HOST_DEVICE Float<UnsignedOf<I>> to_float(I whole) {
  return LanesOf<UnsignedOf<I>>::to_float(whole);
}
/// The FP32 number as a whole one, rounded towards zero.
template <class F>
DEMI_HOST_DEVICE Signed<UnsignedOf<F>> to_whole(F x) {
  return LanesOf<UnsignedOf<F>>::to_whole(x);
}

}  // namespace
}  // namespace demi::kernels
