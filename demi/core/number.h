#pragma once

#include <bit>
#include <cstdint>

// Exact conversions between fp32 and the 16-bit formats: round to nearest, ties to even, subnormals
// kept, NaN stays NaN (quieted, payload truncated), overflow to infinity. IEEE 754-2019
// section 4.3.1. Integer arithmetic only, so no flush mode of the processor and no conversion
// instruction can change a result.
//
// Internal linkage on purpose: files compiled for several instruction sets include this, and with
// external linkage the linker would keep one of their copies for all.
namespace demi {

static constexpr std::uint16_t bf16_from_fp32(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x0040u);
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

static constexpr float fp32_from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

static constexpr std::uint16_t fp16_from_fp32(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u)
    return static_cast<std::uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu));
  if (magnitude >= 0x47800000u)
    return static_cast<std::uint16_t>(sign | 0x7C00u);  // 65536 and more
  if (magnitude < 0x38800000u) {                        // under 2^-14: subnormal or zero
    if (magnitude < 0x33000000u) return sign;           // under 2^-25, half of the smallest
    const int shift = 126 - static_cast<int>(magnitude >> 23);
    const std::uint32_t fraction = (magnitude & 0x7FFFFFu) | 0x800000u;
    const std::uint32_t kept = fraction >> shift;
    const std::uint32_t rest = fraction & ((1u << shift) - 1u);
    const std::uint32_t half = 1u << (shift - 1);
    const std::uint32_t up = rest > half || (rest == half && (kept & 1u));
    return static_cast<std::uint16_t>(sign | (kept + up));
  }
  // The exponent's bias falls from 127 to 15; a carry out of the fraction moves into the exponent,
  // as it should.
  const std::uint32_t rounded = magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | (rounded >> 13));
}

static constexpr float fp32_from_fp16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1Fu;
  const std::uint32_t fraction = bits & 0x3FFu;
  if (exponent == 0x1Fu) return std::bit_cast<float>(sign | 0x7F800000u | (fraction << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (fraction << 13));
  const float magnitude =
      static_cast<float>(fraction) * 0x1p-24f;  // exact: a small integer times a power of two
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
}

}  // namespace demi
