#pragma once

#include <cstdint>

#include "demi/kernels/host_device.h"

// An FP32 number in two halves of 16 bits: the nearest bf16 number, ties away from zero, which is
// the parameter, and the number's own lower bits. With ties to even 65,537 numbers would share each
// even bf16 number, too many for 16 bits. Lossless for all that FP32 holds (payloads of NaN aside).
// Split24 keeps 8 of these bits, as "FlashOptim: optimizers for memory efficient training" (2026,
// arXiv 2602.23349) does: the number is rounded to 24 bits, ties to even, and split then.
// Integer arithmetic alone: the same bits on every path. Internal linkage.
namespace demi::kernels {
namespace {

struct Split {
  using Rest = std::uint16_t;
  static constexpr bool kByChance = false;

  static DEMI_HOST_DEVICE std::uint16_t parameter_of(std::uint32_t bits, std::uint32_t = 0) {
    const bool is_nan = static_cast<std::int32_t>(bits & 0x7FFFFFFFu) > 0x7F800000;
    return static_cast<std::uint16_t>((is_nan ? bits | 0x00400000u : bits + 0x8000u) >> 16);
  }

  static DEMI_HOST_DEVICE Rest rest_of(std::uint32_t bits) { return static_cast<Rest>(bits); }

  /// The number's bits. Where a program has written another parameter since, the rest stays if the
  /// two belong to one number, which is at most half a unit of bf16 from what was written; else it
  /// counts as 0: below a 0, and beyond Inf and NaN.
  static DEMI_HOST_DEVICE std::uint32_t joined(std::uint16_t parameter, Rest rest) {
    const std::uint32_t high = static_cast<std::uint32_t>(parameter) << 16;
    const std::int32_t below = static_cast<std::int16_t>(rest), magnitude = parameter & 0x7FFF;
    const bool is_one = magnitude + (below >= 0) <= 0x7F80 && (magnitude > 0 || below >= 0);
    return is_one ? high + static_cast<std::uint32_t>(below) : high;
  }
};

struct Split24 {
  using Rest = std::uint8_t;
  static constexpr bool kByChance = false;

  static DEMI_HOST_DEVICE std::uint32_t rounded(std::uint32_t bits) {
    const bool is_nan = static_cast<std::int32_t>(bits & 0x7FFFFFFFu) > 0x7F800000;
    return (is_nan ? bits | 0x00400000u : bits + 0x7Fu + (bits >> 8 & 1u)) & 0xFFFFFF00u;
  }

  static DEMI_HOST_DEVICE std::uint16_t parameter_of(std::uint32_t bits, std::uint32_t = 0) {
    return Split::parameter_of(rounded(bits));
  }

  static DEMI_HOST_DEVICE Rest rest_of(std::uint32_t bits) {
    return static_cast<Rest>(rounded(bits) >> 8);
  }

  static DEMI_HOST_DEVICE std::uint32_t joined(std::uint16_t parameter, Rest rest) {
    return Split::joined(parameter, static_cast<Split::Rest>(rest << 8));
  }
};

}  // namespace
}  // namespace demi::kernels
