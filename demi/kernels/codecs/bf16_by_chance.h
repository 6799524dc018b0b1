#pragma once

#include <cstdint>

#include "demi/kernels/host_device.h"

// bf16 by stochastic rounding: up with the probability of what lies below, so that many small
// changes add up in the mean, where rounding to nearest loses them all (Gupta et al. 2015, "Deep
// learning with limited numerical precision", section 3.1). Numbers of bf16, 0 and Inf stay what
// they are, NaN stays NaN; a number beyond the greatest of bf16 may become Inf. Integer arithmetic
// alone: the same bits on every path. Internal linkage.
namespace demi::kernels {
namespace {

/// `bits`: of an FP32 number. `random`: 16 bits.
DEMI_HOST_DEVICE std::uint16_t bf16_by_chance(std::uint32_t bits, std::uint32_t random) {
  const bool is_nan = static_cast<std::int32_t>(bits & 0x7FFFFFFFu) > 0x7F800000;  // all compare so
  return static_cast<std::uint16_t>((is_nan ? bits | 0x00400000u : bits + random) >> 16);
}

/// The bits of the FP32 number.
DEMI_HOST_DEVICE std::uint32_t bits_from_bf16(std::uint16_t half) {
  return static_cast<std::uint32_t>(half) << 16;
}

/// Weights that are nothing but 16 bits.
struct ByChance {
  using Rest = std::uint8_t;  // there is none
  static constexpr bool kByChance = true;

  static DEMI_HOST_DEVICE std::uint16_t parameter_of(std::uint32_t bits, std::uint32_t random) {
    return bf16_by_chance(bits, random);
  }
  static DEMI_HOST_DEVICE Rest rest_of(std::uint32_t) { return 0; }
  static DEMI_HOST_DEVICE std::uint32_t joined(std::uint16_t parameter, Rest) {
    return bits_from_bf16(parameter);
  }
};

}  // namespace
}  // namespace demi::kernels
