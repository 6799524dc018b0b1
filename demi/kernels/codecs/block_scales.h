#pragma once

#include <bit>
#include <cstdint>

#include "demi/kernels/codecs/narrow.h"
#include "demi/kernels/codecs/words.h"
#include "demi/kernels/host_device.h"
#include "demi/kernels/quantized.h"

// The scales of quantized.h, from the bits of the greatest magnitude, which compare as the numbers
// do: those of Inf and NaN are 0x7F800000 and more, and make the scale NaN, so that no Inf
// disappears in a saturated code. FP32 operations, each rounded to nearest and in this order on
// every path. Internal linkage.
namespace demi::kernels {
namespace {

/// A scale in 8 bits, and what the block's numbers are multiplied by.
template <class W>
struct BlockScale {
  W code;
  Float<W> factor;
};

// E8M0: the exponent field of FP32. 0 is 2^-127, which FP32 has as a subnormal number; 255 is NaN.

inline constexpr std::uint32_t kMxNan = 255;

template <class W>
DEMI_HOST_DEVICE Float<W> power_from_e8m0(W code) {
  const W normal = code << 23, least = all_lanes<W>(0x00400000u), nan = all_lanes<W>(kFp32Nan);
  const W bits = signed_of(code) < 1 ? least : normal;
  return float_from(signed_of(code) < static_cast<std::int32_t>(kMxNan) ? bits : nan);
}

/// FP32's bits of x or, if it has more digits than `mantissa`, of a number in the next binade.
template <class W>
DEMI_HOST_DEVICE W up_from_mantissa(W bits, std::uint32_t mantissa) {
  return bits + (0x7FFFFFu - (mantissa & 0x7FFFFFu));
}

/// mx_ceil: 2^ceil(log2(amax / max)). The quotient is no power of two unless amax is max times one:
/// the exponents differ by a whole number, plus 1 if amax has the greater mantissa. Where the scale
/// is 2^-127 numbers are not scaled, as in TransformerEngine and torchao: their codes are 0.
template <class F, class W>
DEMI_HOST_DEVICE BlockScale<W> mx_scale_up(W greatest) {
  constexpr std::uint32_t kGreatest = std::bit_cast<std::uint32_t>(F::kGreatest);
  constexpr std::int32_t kExponent = static_cast<std::int32_t>(kGreatest >> 23) - 127;
  const Signed<W> zero{}, code = signed_of(up_from_mantissa(greatest, kGreatest) >> 23) - kExponent;
  const Signed<W> kept = code > 0 ? code : zero, nan = zero + static_cast<std::int32_t>(kMxNan);
  const auto is_finite = signed_of(greatest) < static_cast<std::int32_t>(kFp32Infinity);
  const W power = std::bit_cast<W>(254 - kept) << 23, one = all_lanes<W>(0x3F800000u);
  const W factor = kept > 0 ? power : one;
  return {std::bit_cast<W>(is_finite ? kept : nan),
          float_from(is_finite ? factor : all_lanes<W>(kFp32Nan))};
}

/// mx_floor: 2^(floor(log2(amax)) - floor(log2(max))).
template <class F, class W>
DEMI_HOST_DEVICE BlockScale<W> mx_scale_down(W greatest) {
  constexpr std::int32_t kExponent =
      static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(F::kGreatest) >> 23) - 127;
  const Signed<W> zero{}, code = signed_of(greatest >> 23) - kExponent;
  const Signed<W> kept = code > 0 ? code : zero, nan = zero + static_cast<std::int32_t>(kMxNan);
  const auto is_finite = signed_of(greatest) < static_cast<std::int32_t>(kFp32Infinity);
  const W power = std::bit_cast<W>(254 - kept) << 23;
  return {std::bit_cast<W>(is_finite ? kept : nan),
          float_from(is_finite ? power : all_lanes<W>(kFp32Nan))};
}

// NVFP4: a block's scale is a code of E4M3 times the tensor's FP32 scale.

inline constexpr float kLargestFloat = 0x1.fffffep127f;

/// x, not beyond the greatest number of FP32. x is 0 or more; NaN becomes the greatest.
template <class F>
DEMI_HOST_DEVICE F not_infinite(F x) {
  using W = UnsignedOf<F>;
  return float_from(lesser_of(bits_from(x) & kMagnitudeBits, all_lanes<W>(0x7F7FFFFFu)));
}

/// What the block scales of a tensor have in common.
struct TensorScale {
  float scale;       // times a code of E4M3: a block's scale
  float multiplier;  // nv: amax of a block to its code; nv_torchao: 1 / scale
};

DEMI_HOST_DEVICE bool is_finite_magnitude(std::uint32_t bits) { return bits < kFp32Infinity; }

/// nv: TransformerEngine's compute_global_encode_scaling_factor_FP4; nv_torchao:
/// per_tensor_amax_to_scale, with 1 for 0.
DEMI_HOST_DEVICE TensorScale nv_tensor_scale(Scaling scaling, std::uint32_t greatest) {
  const float nan = std::bit_cast<float>(kFp32Nan), amax = std::bit_cast<float>(greatest);
  if (!is_finite_magnitude(greatest)) return {nan, nan};
  constexpr float kMost = E4m3::kGreatest * E2m1::kGreatest;
  if (scaling == Scaling::nv_torchao) {
    const float scale = amax / kMost;
    if (scale == 0.0f) return {1.0f, 1.0f};
    return {scale, 1.0f / scale};
  }
  const float encode = not_infinite(kMost / amax);
  return {1.0f / encode, encode * (1.0f / E2m1::kGreatest)};
}

template <class W>
DEMI_HOST_DEVICE BlockScale<W> nv_scale(Scaling scaling, TensorScale of, W greatest) {
  using F = Float<W>;
  const F amax = float_from(greatest);
  if (scaling == Scaling::nv_torchao) {
    constexpr std::uint32_t kLeast = 0x3C800000u;  // 2^-6
    const W wanted = bits_from(amax / E2m1::kGreatest / of.scale);
    const W kept = greater_of(wanted, all_lanes<W>(kLeast));
    const W code = code_of<E4m3, ToNearest>(kept, W{}, W{});
    return {code, not_infinite(of.multiplier / number_of<E4m3>(code))};
  }
  const W code = code_of<E4m3, ToNearest>(bits_from(amax * of.multiplier), W{}, W{});
  return {code, not_infinite(1.0f / (number_of<E4m3>(code) * of.scale))};
}

/// FP32 scales: what numbers are multiplied by. torchao's amax_to_scale.
DEMI_HOST_DEVICE float fp32_scale(NarrowFormat format, Scaling scaling, std::uint32_t greatest) {
  if (!is_finite_magnitude(greatest)) return std::bit_cast<float>(kFp32Nan);
  constexpr double kLeast = 1e-12;
  const double amax = static_cast<double>(std::bit_cast<float>(greatest));
  const double most = static_cast<double>(format == NarrowFormat::e4m3   ? E4m3::kGreatest
                                          : format == NarrowFormat::e5m2 ? E5m2::kGreatest
                                                                         : E2m1::kGreatest);
  const auto scale = static_cast<float>(most / (amax < kLeast ? kLeast : amax));
  // Never subnormal: at least 6 / 2^128.
  const auto bits = std::bit_cast<std::uint32_t>(scale);
  return rounds_to_power_of_two(scaling) ? std::bit_cast<float>(bits & kFp32Infinity) : scale;
}

}  // namespace
}  // namespace demi::kernels
