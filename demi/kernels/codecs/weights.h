#pragma once

#include <bit>
#include <cstdint>

#include "demi/kernels/codecs/bf16_by_chance.h"
#include "demi/kernels/codecs/codec.h"
#include "demi/kernels/codecs/split.h"
#include "demi/kernels/codecs/split_fp16.h"
#include "demi/kernels/host_device.h"

// Coded weights an element at a time, for whoever has no vectors of them. Internal linkage.
namespace demi::kernels {
namespace {

/// One element as it lies in memory.
struct Parted {
  std::uint16_t parameter, rest;
};

DEMI_HOST_DEVICE float joined(WeightCodec codec, Parted parted) {
  const std::uint32_t parameter = parted.parameter, rest = parted.rest;
  switch (codec) {
    case WeightCodec::split24:
      return std::bit_cast<float>(Split24::joined(parameter, rest));
    case WeightCodec::by_chance:
      return std::bit_cast<float>(ByChance::joined(parameter, rest));
    case WeightCodec::split_fp16:
      return std::bit_cast<float>(SplitFp16::joined(parameter, rest));
    default:
      return std::bit_cast<float>(Split::joined(parameter, rest));
  }
}

template <class C>
DEMI_HOST_DEVICE Parted parted_by(float x, std::uint32_t random) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return {static_cast<std::uint16_t>(C::parameter_of(bits, random)),
          static_cast<std::uint16_t>(C::rest_of(bits))};
}

/// `random`: 16 bits.
DEMI_HOST_DEVICE Parted parted_of(WeightCodec codec, float x, std::uint32_t random) {
  switch (codec) {
    case WeightCodec::split24:
      return parted_by<Split24>(x, random);
    case WeightCodec::by_chance:
      return parted_by<ByChance>(x, random);
    case WeightCodec::split_fp16:
      return parted_by<SplitFp16>(x, random);
    default:
      return parted_by<Split>(x, random);
  }
}

DEMI_HOST_DEVICE float decoded(const CodedWeight& weight, std::int64_t i) {
  const int bytes = rest_bytes_of(weight.codec);
  std::uint16_t rest = 0;
  if (bytes == 2) rest = static_cast<const std::uint16_t*>(weight.rest)[i];
  if (bytes == 1) rest = static_cast<const std::uint8_t*>(weight.rest)[i];
  return joined(weight.codec, {weight.parameter[i], rest});
}

/// `random`: 16 bits.
DEMI_HOST_DEVICE void encode(const CodedWeight& weight, std::int64_t i, float x,
                             std::uint32_t random) {
  const Parted parted = parted_of(weight.codec, x, random);
  const int bytes = rest_bytes_of(weight.codec);
  weight.parameter[i] = parted.parameter;
  if (bytes == 2) static_cast<std::uint16_t*>(weight.rest)[i] = parted.rest;
  if (bytes == 1)
    static_cast<std::uint8_t*>(weight.rest)[i] = static_cast<std::uint8_t>(parted.rest);
}

}  // namespace
}  // namespace demi::kernels
