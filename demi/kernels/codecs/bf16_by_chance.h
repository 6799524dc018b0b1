#pragma once

#include <cstdint>

#include "demi/kernels/codecs/words.h"
#include "demi/kernels/host_device.h"

// bf16 by stochastic rounding: up with the probability of what lies below, so that many small
// changes add up in the mean, where rounding to nearest loses them all (Gupta et al. 2015, "Deep
// learning with limited numerical precision", section 3.1). Numbers of bf16, 0 and Inf stay what
// they are, NaN stays NaN; a number beyond the greatest of bf16 may become Inf. Integer arithmetic
// alone: the same bits on every path. Internal linkage.
namespace demi::kernels {
namespace {

/// `bits`: of an FP32 number. `random`: 16 bits. Returns 16 bits.
template <class W>
DEMI_HOST_DEVICE W bf16_by_chance(W bits, W random) {
  const W quiet = bits | 0x00400000u, moved = bits + random;
  return (signed_of(bits & 0x7FFFFFFFu) > 0x7F800000 ? quiet : moved) >> 16;  // NaN stays
}

/// The bits of the FP32 number.
template <class W>
DEMI_HOST_DEVICE W bits_from_bf16(W half) {
  return half << 16;
}
DEMI_HOST_DEVICE std::uint32_t bits_from_bf16(std::uint16_t half) {
  return static_cast<std::uint32_t>(half) << 16;
}

/// Weights that are nothing but 16 bits.
struct ByChance {
  using Rest = std::uint8_t;  // there is none
  static constexpr bool kByChance = true;

  template <class W>
  static DEMI_HOST_DEVICE W parameter_of(W bits, W random) {
    return bf16_by_chance(bits, random);
  }
  template <class W>
  static DEMI_HOST_DEVICE W rest_of(W) {
    return W{};
  }
  template <class W>
  static DEMI_HOST_DEVICE W joined(W parameter, W) {
    return bits_from_bf16(parameter);
  }
};

}  // namespace
}  // namespace demi::kernels
