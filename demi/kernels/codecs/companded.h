#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "demi/kernels/codecs/bf16_by_chance.h"
#include "demi/kernels/codecs/codec.h"
#include "demi/kernels/codecs/words.h"
#include "demi/kernels/host_device.h"

// Moments in 8 bits, in groups of 32 neighbours that share a scale, as in "FlashOptim: optimizers
// for memory efficient training" (2026, arXiv 2602.23349): a first moment through the softsign,
// which spends more codes near 0; a second moment through its root. What differs: codes are rounded
// by chance, since a second moment decays by less than half a code in a step; scales are bf16,
// whose range is FP32's; and a second moment above 0 has a code above 0, since a first moment that
// was kept is divided by its root.
//
// Operations are FP32's, each rounded to nearest and in this order on every path. Internal linkage.
namespace demi::kernels {
namespace {

inline constexpr std::uint32_t kInfBits = 0x7F800000u;
/// The scale of a group with an Inf or a NaN, all of which is NaN then.
inline constexpr std::uint16_t kNanScale = 0x7FC0u;
/// 2^-126: a scale and its reciprocal are normal numbers from here to the greatest.
inline constexpr std::uint16_t kLeastScale = 0x0080u;
/// 2^126, and the greatest whose square is finite.
inline constexpr std::uint16_t kGreatestScale = 0x7E80u, kGreatestRootScale = 0x5F7Fu;

/// The scale of a group whose greatest magnitude, or the root of it, has these bits: rounded up, so
/// that no code is beyond the last one. 0 for a group of zeros, and for what is below FP32's normal
/// numbers; cut at `greatest`.
DEMI_HOST_DEVICE std::uint16_t group_scale(std::uint32_t bits, std::uint16_t greatest) {
  if (bits >= kInfBits) return kNanScale;
  if (bits < bits_from_bf16(kLeastScale)) return 0;
  const auto scale = static_cast<std::uint16_t>((bits + 0xFFFFu) >> 16);
  return scale > greatest ? greatest : scale;
}

DEMI_HOST_DEVICE float scale_of(std::uint16_t scale) {
  return std::bit_cast<float>(bits_from_bf16(static_cast<std::uint32_t>(scale)));
}

/// What a value is multiplied by: 0 where the codes are 0 or do not matter.
DEMI_HOST_DEVICE float inverse_of_code_scale(std::uint16_t scale) {
  return scale == 0 || scale == kNanScale ? 0.0f : 1.0f / scale_of(scale);
}

// F, W: FP32 numbers and words, one or several (words.h). Comparisons are of bits: those of numbers
// may trap.

template <class F>
DEMI_HOST_DEVICE UnsignedOf<F> magnitude_of(F x) {
  return bits_from(x) & 0x7FFFFFFFu;
}

/// 16 random bits as a number in [0, 1).
template <class W>
DEMI_HOST_DEVICE Float<W> fraction_of(W random) {
  return to_float(signed_of(random)) * 0x1p-16f;
}

/// 0 for what is below it; NaN stays.
template <class F>
DEMI_HOST_DEVICE F not_negative(F x) {
  const auto bits = bits_from(x);
  const auto is_nan = signed_of(bits & 0x7FFFFFFFu) > static_cast<std::int32_t>(kInfBits);
  const auto is_kept = (signed_of(bits) >= 0) | is_nan;
  const F zero{};
  return is_kept ? x : zero;
}

/// The magnitude, and 1 for what is beyond it and for NaN.
template <class F>
DEMI_HOST_DEVICE F at_most_one(F x) {
  constexpr std::int32_t kOne = 0x3F800000;
  const auto magnitude = magnitude_of(x);
  const F inside = std::bit_cast<F>(magnitude), one = F{} + 1.0f;
  return signed_of(magnitude) < kOne ? inside : one;
}

/// -127 ... 127: 254 y / (1 + |y|) of y = x / scale, rounded by chance.
template <class F>
DEMI_HOST_DEVICE Signed<UnsignedOf<F>> softsign_code(F x, float inverse_scale, F fraction) {
  const F y = x * inverse_scale, magnitude = at_most_one(y);
  const auto whole = to_whole(254.0f * magnitude / (1.0f + magnitude) + fraction);
  const auto sign = signed_of(bits_from(y)) >> 31;  // 0 or -1
  return (whole ^ sign) - sign;
}

template <class I>
DEMI_HOST_DEVICE Float<UnsignedOf<I>> from_softsign_code(I code, float scale) {
  const I sign = code >> 31, magnitude = (code ^ sign) - sign;
  return to_float(code) / to_float(254 - magnitude) * scale;
}

/// 0 ... 255 of root = sqrt(x), rounded so that the square is kept in the mean.
template <class F>
DEMI_HOST_DEVICE Signed<UnsignedOf<F>> root_code(F root, float inverse_scale, F fraction) {
  using I = Signed<UnsignedOf<F>>;
  const F code = 255.0f * at_most_one(root * inverse_scale);
  const I whole = to_whole(code);
  const F below = to_float(whole);
  const F missing = fraction * (2.0f * below + 1.0f) - (code * code - below * below);
  const I rounded = whole + signed_of(bits_from(missing) >> 31), zero{}, one = zero + 1;
  const I least = magnitude_of(root) != 0u ? one : zero;
  return rounded + (rounded == 0 ? least : zero);
}

template <class I>
DEMI_HOST_DEVICE Float<UnsignedOf<I>> from_root_code(I code, float scale) {
  const auto root = to_float(code) * (1.0f / 255.0f) * scale;
  return root * root;
}

}  // namespace
}  // namespace demi::kernels
