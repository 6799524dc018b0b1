#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "demi/kernels/codecs/bf16_by_chance.h"
#include "demi/kernels/codecs/codec.h"
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

/// Of a group whose greatest magnitude, or the root of it, has these bits: rounded up, so that no
/// code is beyond the last one. 0 for a group of zeros, and of what is below FP32's normal numbers;
/// what is beyond `greatest` is cut there.
DEMI_HOST_DEVICE std::uint16_t group_scale(std::uint32_t bits, std::uint16_t greatest) {
  if (bits >= kInfBits) return kNanScale;
  if (bits < bits_from_bf16(kLeastScale)) return 0;
  const auto scale = static_cast<std::uint16_t>((bits + 0xFFFFu) >> 16);
  return scale > greatest ? greatest : scale;
}

DEMI_HOST_DEVICE float scale_of(std::uint16_t scale) {
  return std::bit_cast<float>(bits_from_bf16(scale));
}

/// What a value is multiplied by: 0 where the codes are 0 or do not matter.
DEMI_HOST_DEVICE float inverse_of_code_scale(std::uint16_t scale) {
  return scale == 0 || scale == kNanScale ? 0.0f : 1.0f / scale_of(scale);
}

// Comparisons are of bits: those of numbers may trap, and the compiler makes no vectors of them.

DEMI_HOST_DEVICE std::uint32_t magnitude_of(float x) {
  return std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFu;
}

/// 16 random bits as a number in [0, 1).
DEMI_HOST_DEVICE float fraction_of(std::uint32_t random) {
  return static_cast<float>(static_cast<std::int32_t>(random)) * 0x1p-16f;
}

/// 0 for what is below it; NaN stays.
DEMI_HOST_DEVICE float not_negative(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t is_kept = (bits >> 31) == 0u || (bits & 0x7FFFFFFFu) > kInfBits ? ~0u : 0u;
  return std::bit_cast<float>(bits & is_kept);
}

/// The magnitude, and 1 for what is beyond it and for NaN.
DEMI_HOST_DEVICE float at_most_one(float x) {
  constexpr std::uint32_t kOne = 0x3F800000u;
  const std::uint32_t magnitude = magnitude_of(x);
  return std::bit_cast<float>(magnitude < kOne ? magnitude : kOne);
}

/// -127 ... 127: 254 y / (1 + |y|) of y = x / scale, rounded by chance.
DEMI_HOST_DEVICE std::int32_t softsign_code(float x, float inverse_scale, float fraction) {
  const float y = x * inverse_scale, magnitude = at_most_one(y);
  const auto whole = static_cast<std::int32_t>(254.0f * magnitude / (1.0f + magnitude) + fraction);
  const std::int32_t sign = std::bit_cast<std::int32_t>(y) >> 31;  // 0 or -1
  return (whole ^ sign) - sign;
}

DEMI_HOST_DEVICE float from_softsign_code(std::int32_t code, float scale) {
  const std::int32_t sign = code >> 31, magnitude = (code ^ sign) - sign;
  return static_cast<float>(code) / static_cast<float>(254 - magnitude) * scale;
}

/// 0 ... 255 of root = sqrt(x), rounded so that the square is kept in the mean.
DEMI_HOST_DEVICE std::int32_t root_code(float root, float inverse_scale, float fraction) {
  const float code = 255.0f * at_most_one(root * inverse_scale);
  const auto whole = static_cast<std::int32_t>(code);
  const auto below = static_cast<float>(whole);
  const float missing = fraction * (2.0f * below + 1.0f) - (code * code - below * below);
  const auto rounded =
      whole + static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(missing) >> 31);
  return rounded + (rounded == 0 && magnitude_of(root) != 0u ? 1 : 0);
}

DEMI_HOST_DEVICE float from_root_code(std::int32_t code, float scale) {
  const float root = static_cast<float>(code) * (1.0f / 255.0f) * scale;
  return root * root;
}

}  // namespace
}  // namespace demi::kernels
