#pragma once

#include <bit>
#include <cstdint>

#include "demi/kernels/codecs/words.h"
#include "demi/kernels/host_device.h"
#include "demi/kernels/quantized.h"

// Numbers of 8 and 4 bits: E4M3 and E5M2 (Micikevicius et al. 2022, "FP8 formats for deep
// learning", table 1), E2M1 (OCP Microscaling formats 1.0, section 5.3.3). Subnormal numbers are
// kept. Finite numbers beyond the greatest become the greatest. Inf and NaN become NaN; E2M1 has
// none, and its arrays have a NaN in their scales (block_scales.h).
//
// A rounding counts the number in units of its last place: the count is below 2^24, its fraction is
// what is rounded away, and products by powers of two are exact, so the bits are the same on every
// path. Internal linkage.
namespace demi::kernels {
namespace {

inline constexpr std::uint32_t kMagnitudeBits = 0x7FFFFFFFu;
inline constexpr std::uint32_t kFp32Infinity = 0x7F800000u, kFp32Nan = 0x7FC00000u;

struct E4m3 {
  static constexpr NarrowFormat kFormat = NarrowFormat::e4m3;
  static constexpr int kExponentBits = 4, kFractionBits = 3, kBias = 7;
  static constexpr float kGreatest = 448.0f;
  static constexpr std::uint32_t kNan = 0x7F, kFirstSpecial = 0x7F;  // no Inf
};
struct E5m2 {
  static constexpr NarrowFormat kFormat = NarrowFormat::e5m2;
  static constexpr int kExponentBits = 5, kFractionBits = 2, kBias = 15;
  static constexpr float kGreatest = 57344.0f;
  static constexpr std::uint32_t kNan = 0x7E, kFirstSpecial = 0x7C;
};
struct E2m1 {
  static constexpr NarrowFormat kFormat = NarrowFormat::e2m1;
  static constexpr int kExponentBits = 2, kFractionBits = 1, kBias = 1;
  static constexpr float kGreatest = 6.0f;
  static constexpr std::uint32_t kNan = 7, kFirstSpecial = 8;  // neither Inf nor NaN
};

template <class F>
inline constexpr int kBitsOf = 1 + F::kExponentBits + F::kFractionBits;
template <class F>
inline constexpr std::uint32_t kSignOf = 1u << (kBitsOf<F> - 1);
template <class F>
inline constexpr bool kHasNan = F::kFirstSpecial < kSignOf<F>;

template <class W>
DEMI_HOST_DEVICE W lesser_of(W a, W b) {
  return a < b ? a : b;
}
template <class W>
DEMI_HOST_DEVICE W greater_of(W a, W b) {
  return a > b ? a : b;
}
/// The same word in all lanes.
template <class W>
DEMI_HOST_DEVICE W all_lanes(std::uint32_t word) {
  return W{} + word;
}
template <class W>
DEMI_HOST_DEVICE Float<W> all_floats(float x) {
  return Float<W>{} + x;
}

/// Roundings to nearest, ties to even, of a count of units below 2^22.
struct ToNearest {
  static constexpr bool kDraws = false;
  template <class W>
  DEMI_HOST_DEVICE W operator()(Float<W> units, W) const {
    return bits_from(units + 0x1p23f) - 0x4B000000u;
  }
};
/// Up with the probability of the fraction, to 2^-16 of a unit. `random`: 16 bits.
struct ByFraction {
  static constexpr bool kDraws = true;
  template <class W>
  DEMI_HOST_DEVICE W operator()(Float<W> units, W random) const {
    return (std::bit_cast<W>(to_whole(units * 0x1p16f)) + random) >> 16;
  }
};

/// The code of a number with these bits and this sign. `magnitude`: the bits of the number without
/// its sign; those of a NaN may have one.
template <class F, class Rounding, class W>
DEMI_HOST_DEVICE W code_of(W magnitude, W sign_from, W random) {
  constexpr std::uint32_t kGreatestBits = std::bit_cast<std::uint32_t>(F::kGreatest);
  constexpr std::uint32_t kLeastField = 128 - F::kBias;  // FP32's exponent field of it
  constexpr std::uint32_t kFraction = F::kFractionBits;
  const W kept = lesser_of(magnitude, all_lanes<W>(kGreatestBits));
  const W exponent = greater_of(kept >> 23, all_lanes<W>(kLeastField));
  const Float<W> per_unit = float_from((254u + kFraction - exponent) << 23);
  const W units = Rounding()(float_from(kept) * per_unit, random);
  // The leading 1 of a normal number, and a carry, add 1 to the exponent.
  const W code = ((exponent - kLeastField) << kFraction) + units;
  const W sign = sign_from >> (32 - kBitsOf<F>), with_sign = code | (sign & kSignOf<F>);
  if constexpr (!kHasNan<F>) {
    return with_sign;
  } else {
    const W nan = all_lanes<W>(F::kNan);
    return signed_of(magnitude & kMagnitudeBits) >= static_cast<std::int32_t>(kFp32Infinity)
               ? nan
               : with_sign;
  }
}

/// The code of an FP32 number.
template <class F, class Rounding, class W>
DEMI_HOST_DEVICE W code_of(W bits, W random) {
  return code_of<F, Rounding>(bits & kMagnitudeBits, bits, random);
}

/// The code of an FP32 number times a factor above 0.
template <class F, class Rounding, class W>
DEMI_HOST_DEVICE W scaled_code(W bits, Float<W> factor, W random) {
  const Float<W> scaled = float_from(bits & kMagnitudeBits) * factor;
  return code_of<F, Rounding>(bits_from(scaled), bits, random);
}

/// The number that a code stands for. Exact, whatever the processor does to subnormal numbers.
template <class F, class W>
DEMI_HOST_DEVICE Float<W> number_of(W code) {
  constexpr std::uint32_t kFraction = F::kFractionBits;
  constexpr float kUnit =
      std::bit_cast<float>((128u - F::kBias - kFraction) << 23);  // the smallest
  const W magnitude = code & (kSignOf<F> - 1u);
  const W normal = (magnitude << (23 - kFraction)) + ((127u - F::kBias) << 23);
  const W small = bits_from(to_float(signed_of(magnitude)) * kUnit);
  W bits = signed_of(magnitude) < (1 << kFraction) ? small : normal;
  if constexpr (kHasNan<F>) {
    const W special = F::kFirstSpecial == F::kNan ? all_lanes<W>(kFp32Nan) : normal | kFp32Infinity;
    bits = signed_of(magnitude) >= static_cast<std::int32_t>(F::kFirstSpecial) ? special : bits;
  }
  return float_from(bits | (code & kSignOf<F>) << (32 - kBitsOf<F>));
}

/// act(F()) of the format.
template <class Act>
void with_format(NarrowFormat format, Act act) {
  switch (format) {
    case NarrowFormat::e4m3:
      return act(E4m3());
    case NarrowFormat::e5m2:
      return act(E5m2());
    case NarrowFormat::e2m1:
      return act(E2m1());
  }
}

}  // namespace
}  // namespace demi::kernels
