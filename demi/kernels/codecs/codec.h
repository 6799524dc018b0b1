#pragma once

#include <cstdint>

namespace demi::kernels {

/// How an array lies in memory in fewer bytes than FP32's. A pass decodes a piece of it into FP32,
/// runs the rule, and encodes the result, so that no rule knows of codecs.
enum class Codec : std::uint8_t {
  bf16_by_chance,  // codecs/bf16_by_chance.h
  softsign,        // codecs/companded.h: 8 bits of a number of either sign
  root,            // codecs/companded.h: 8 bits of a number of 0 or more
};

/// Elements that share a scale.
inline constexpr int kCodeGroup = 32;

constexpr bool has_scales(Codec codec) { return codec != Codec::bf16_by_chance; }
/// Bytes of an element, without its share of a scale.
constexpr int bytes_of(Codec codec) { return has_scales(codec) ? 1 : 2; }
/// Scales of an array, two bytes each.
constexpr std::int64_t scales_of(Codec codec, std::int64_t length) {
  return has_scales(codec) ? (length + kCodeGroup - 1) / kCodeGroup : 0;
}

/// An array of a tensor that takes the place of an FP32 one.
struct Coded {
  void* values = nullptr;  // null: the array is FP32
  void* scales = nullptr;  // bf16, one a group, or null
  Codec codec = Codec::bf16_by_chance;
};

/// How a weight lies in a 16-bit parameter, which programs read, and in what the parameter lacks.
enum class WeightCodec : std::uint8_t {
  split,       // codecs/split.h: all 32 bits of FP32
  split24,     // codecs/split.h: 24 of them
  by_chance,   // codecs/bf16_by_chance.h: the parameter lacks nothing
  split_fp16,  // codecs/split_fp16.h: all 32 bits of FP32, of numbers that fp16 can be near to
};

/// Bytes of an element besides the parameter.
constexpr int rest_bytes_of(WeightCodec codec) {
  switch (codec) {
    case WeightCodec::split24:
      return 1;
    case WeightCodec::by_chance:
      return 0;
    default:
      return 2;
  }
}

/// A parameter that takes the place of an FP32 one.
struct CodedWeight {
  std::uint16_t* parameter = nullptr;  // null: the parameter is FP32
  void* rest = nullptr;                // what it lacks, or null
  WeightCodec codec = WeightCodec::split;
};

/// RoundingKey::state of the parameter itself.
inline constexpr int kWeightArray = 3;

/// What the random bits of a rounding depend on besides the element.
struct RoundingKey {
  std::uint64_t seed;
  std::uint32_t tensor;  // number of the parameter, through all groups
  std::uint32_t state;   // which array of it: 0 ... 2, or kWeightArray
  std::uint32_t step;    // updates that the parameter has taken, with this one
};

}  // namespace demi::kernels
