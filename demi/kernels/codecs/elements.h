#pragma once

#include <cstdint>

#include "demi/kernels/codecs/bf16_by_chance.h"
#include "demi/kernels/codecs/codec.h"
#include "demi/kernels/codecs/companded.h"
#include "demi/kernels/formulas.h"

// Coded arrays an element at a time, for code without vectors of them. Internal linkage.
namespace demi::kernels {
namespace {

DEMI_HOST_DEVICE std::uint16_t& scale_at(const Coded& array, std::int64_t i) {
  return static_cast<std::uint16_t*>(array.scales)[i / kCodeGroup];
}

/// The number that a code of 8 bits stands for.
DEMI_HOST_DEVICE float decoded(Codec codec, std::uint8_t code, std::uint16_t scale) {
  const std::int32_t whole = code, number = static_cast<std::int8_t>(code);
  return codec == Codec::root ? from_root_code(whole, scale_of(scale))
                              : from_softsign_code(number, scale_of(scale));
}

DEMI_HOST_DEVICE float decoded(const Coded& array, std::int64_t i) {
  if (has_scales(array.codec))
    return decoded(array.codec, static_cast<const std::uint8_t*>(array.values)[i],
                   scale_at(array, i));
  const std::uint32_t half = static_cast<const std::uint16_t*>(array.values)[i];
  return std::bit_cast<float>(bits_from_bf16(half));
}

/// The bits of x's magnitude, or of its root's, which compare as the numbers do. The greatest of a
/// group gives its scale.
DEMI_HOST_DEVICE std::uint32_t magnitude_bits(Codec codec, float x) {
  const float magnitude = codec == Codec::root ? square_root(not_negative(x)) : x;
  return std::bit_cast<std::uint32_t>(magnitude) & 0x7FFFFFFFu;
}

/// The scale of a group whose greatest magnitude_bits() are these.
DEMI_HOST_DEVICE std::uint16_t scale_for(Codec codec, std::uint32_t greatest) {
  return group_scale(greatest, codec == Codec::root ? kGreatestRootScale : kGreatestScale);
}

/// The code of 8 bits of x. `random`: 16 bits.
DEMI_HOST_DEVICE std::uint8_t code_of(Codec codec, float x, std::uint16_t scale,
                                      std::uint32_t random) {
  const float inverse = inverse_of_code_scale(scale), fraction = fraction_of(random);
  const std::int32_t code = codec == Codec::root
                                ? root_code(square_root(not_negative(x)), inverse, fraction)
                                : softsign_code(x, inverse, fraction);
  return static_cast<std::uint8_t>(code);
}

/// Stores x under the scale that its group has by now.
DEMI_HOST_DEVICE void encode(const Coded& array, std::int64_t i, float x, std::uint32_t random) {
  if (has_scales(array.codec))
    static_cast<std::uint8_t*>(array.values)[i] =
        code_of(array.codec, x, scale_at(array, i), random);
  else
    static_cast<std::uint16_t*>(array.values)[i] =
        static_cast<std::uint16_t>(bf16_by_chance(std::bit_cast<std::uint32_t>(x), random));
}

}  // namespace
}  // namespace demi::kernels
