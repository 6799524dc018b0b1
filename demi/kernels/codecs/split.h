#pragma once

#include <cstdint>

#include "demi/kernels/codecs/words.h"
#include "demi/kernels/host_device.h"

// An FP32 number in two halves of 16 bits: the nearest bf16 number, ties away from zero, which is
// the parameter, and the number's own lower bits. With ties to even 65,537 numbers would share each
// even bf16 number, too many for 16 bits. Lossless for all that FP32 holds (payloads of NaN aside).
// Split24 keeps 8 of these bits, as "FlashOptim: optimizers for memory efficient training" (2026,
// arXiv 2602.23349) does: the number is rounded to 24 bits, ties to even, and split then.
// Integer arithmetic alone: the same bits on every path. Internal linkage.
namespace demi::kernels {
namespace {

/// bits & 0x7FFFFFFF as numbers that compare as magnitudes do.
template <class W>
DEMI_HOST_DEVICE Signed<W> magnitude_in(W bits) {
  return signed_of(bits & 0x7FFFFFFFu);
}

// Halves and rests are words with 16 or 8 bits of their own, the others being 0.

struct Split {
  using Rest = std::uint16_t;
  static constexpr bool kByChance = false;

  template <class W>
  static DEMI_HOST_DEVICE W parameter_of(W bits, W = W{}) {
    const W quiet = bits | 0x00400000u, rounded = bits + 0x8000u;
    return (magnitude_in(bits) > 0x7F800000 ? quiet : rounded) >> 16;
  }

  template <class W>
  static DEMI_HOST_DEVICE W rest_of(W bits) {
    return bits & 0xFFFFu;
  }

  /// The number's bits. Where a program has written another parameter since, the rest stays if the
  /// two belong to one number, which is at most half a unit of bf16 from what was written; else it
  /// counts as 0: below a 0, and beyond Inf and NaN.
  template <class W>
  static DEMI_HOST_DEVICE W joined(W parameter, W rest) {
    const W high = parameter << 16, is_less = rest >> 15;
    const W sum = high + rest - (is_less << 16);
    // Less: magnitudes of 1 to 0x7F80; else of 0 to 0x7F7F.
    return (parameter & 0x7FFFu) - is_less < 0x7F80u ? sum : high;
  }
};

struct Split24 {
  using Rest = std::uint8_t;
  static constexpr bool kByChance = false;

  template <class W>
  static DEMI_HOST_DEVICE W rounded(W bits) {
    const W quiet = bits | 0x00400000u, nearest = bits + 0x7Fu + (bits >> 8 & 1u);
    return (magnitude_in(bits) > 0x7F800000 ? quiet : nearest) & 0xFFFFFF00u;
  }

  template <class W>
  static DEMI_HOST_DEVICE W parameter_of(W bits, W = W{}) {
    return Split::parameter_of(rounded(bits));
  }

  template <class W>
  static DEMI_HOST_DEVICE W rest_of(W bits) {
    return rounded(bits) >> 8 & 0xFFu;
  }

  template <class W>
  static DEMI_HOST_DEVICE W joined(W parameter, W rest) {
    return Split::joined(parameter, rest << 8);
  }
};

}  // namespace
}  // namespace demi::kernels
