#pragma once

#include <cstdint>

#include "demi/kernels/codecs/split.h"
#include "demi/kernels/codecs/words.h"
#include "demi/kernels/host_device.h"

// As split.h, of fp16: the nearest fp16 number, ties away from zero, which is the parameter, and
// what the number has beyond it. Of a normal fp16 number that is the difference of the FP32 bits,
// 13 of which fp16 lacks; below 2^-14, where fp16 has a unit of 2^-24 for all, a multiple of 2^-39.
// So numbers from 2^-16 to 65,520 are kept with all their bits, smaller ones as multiples of 2^-39
// (rounded, ties to even), and what is 65,520 or more is Inf, as in fp16.
// The bits are the same on every path: besides integers there are products by a power of two, which
// are exact, and one rounded sum. Internal linkage.
namespace demi::kernels {
namespace {

struct SplitFp16 {
  using Rest = std::uint16_t;
  static constexpr bool kByChance = false;
  static constexpr std::int32_t kLeastNormal = 0x38800000;  // FP32 bits of 2^-14
  static constexpr std::int32_t kBeyond = 0x477FF000;       // of 65,520
  static constexpr std::int32_t kBias = 112 << 10;          // of fp16's exponent to FP32's

  /// How many 2^-39 the number below 2^-14 with these bits is.
  template <class I>
  static DEMI_HOST_DEVICE I multiple_of(I magnitude) {
    using F = Float<UnsignedOf<I>>;
    constexpr std::int32_t kWhole = 0x4B000000;  // FP32 bits of 2^23: from there on no fraction
    const F x = std::bit_cast<F>(magnitude) * 0x1p39f;
    const I rounded = std::bit_cast<I>(x + 0x1p23f) - kWhole, whole = to_whole(x);
    return std::bit_cast<I>(x) < kWhole ? rounded : whole;
  }

  template <class W>
  struct Halves {
    W parameter, rest;
  };

  template <class W>
  static DEMI_HOST_DEVICE Halves<W> halves_of(W bits) {
    using I = Signed<W>;
    const I magnitude = magnitude_in(bits), zero{};
    const auto is_small = magnitude < kLeastNormal, is_beyond = magnitude >= kBeyond;
    const I within = is_beyond ? zero + kLeastNormal : magnitude;  // a NaN's bits would overflow
    const I multiple = multiple_of(is_small ? magnitude : zero);
    const I small = (multiple + 0x4000) >> 15, large = ((within + 0x1000) >> 13) - kBias;
    const I nearest = is_small ? small : large;
    const I beyond_small = multiple - (nearest << 15),
            beyond_large = within - ((nearest + kBias) << 13);
    const I rest = nearest < 0x400 ? beyond_small : beyond_large;
    const auto is_nan = magnitude > 0x7F800000;
    const I inf = zero + 0x7C00, nan = zero + 0x7E00;
    const I half = is_beyond ? (is_nan ? nan : inf) : nearest;
    const I kept = is_beyond ? zero : rest;
    const W sign = bits >> 16 & 0x8000u, none{};  // that of a NaN differs from path to path
    return {(is_nan ? none : sign) | std::bit_cast<W>(half), std::bit_cast<W>(kept) & 0xFFFFu};
  }

  template <class W>
  static DEMI_HOST_DEVICE W parameter_of(W bits, W = W{}) {
    return halves_of(bits).parameter;
  }

  template <class W>
  static DEMI_HOST_DEVICE W rest_of(W bits) {
    return halves_of(bits).rest;
  }

  /// As Split::joined: where a program has written another parameter since, the rest stays if the
  /// two belong to one number.
  template <class W>
  static DEMI_HOST_DEVICE W joined(W parameter, W rest) {
    using I = Signed<W>;
    const I half = signed_of(parameter & 0x7FFFu), below = signed_of(rest << 16) >> 16;
    const I multiple = half << 15, sum = multiple + below;
    const I even = sum & ~(sum >> 24 & 1);  // FP32 has no others from 2^24 on
    const auto is_one = (below >= -0x4000) & (below < 0x4000) & (sum >= 0);
    const I small = std::bit_cast<I>(to_float(is_one ? even : multiple) * 0x1p-39f);
    const I whole = (half + kBias) << 13, next = whole + below, zero{};
    // FP32's unit halves below 2^-14.
    const I least = half == 0x400 ? zero - 0x2000 : zero - 0x1000;
    const auto is_near = (below >= least) & (below < 0x1000);
    const I normal = is_near ? next : whole;
    const I beyond = 0x7F800000 | (half & 0x3FF) << 13;
    const I large = half < 0x7C00 ? normal : beyond;
    const I magnitude = half < 0x400 ? small : large;
    return std::bit_cast<W>(magnitude) | (parameter & 0x8000u) << 16;
  }
};

}  // namespace
}  // namespace demi::kernels
