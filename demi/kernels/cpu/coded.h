#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "demi/kernels/codecs/bf16_by_chance.h"
#include "demi/kernels/codecs/companded.h"
#include "demi/kernels/codecs/random_halves.h"
#include "demi/kernels/codecs/weights.h"
#include "demi/kernels/cpu/vector.h"

// Pieces of coded arrays to and from FP32, group by group: loops of a fixed length, of which the
// compiler makes vectors. Internal linkage.
namespace demi::kernels {
namespace {

/// Elements of a piece at most.
inline constexpr int kEdge = 512;

/// act(to, from, g) for group g of n elements. A last group that is not full is filled up with
/// zeros; a full one is worked on where it lies, since a copy that is read in wider pieces than it
/// was written in waits for memory.
template <class To, class From, class Act>
inline __attribute__((always_inline)) void by_groups(To* to, const From* from, int n, Act act) {
  int at = 0;
  for (; at + kCodeGroup <= n; at += kCodeGroup) act(to + at, from + at, at / kCodeGroup);
  if (at == n) return;
  const auto some = static_cast<std::size_t>(n - at);
  From filled[kCodeGroup] = {};
  To made[kCodeGroup];
  std::memcpy(filled, from + at, some * sizeof(From));
  act(made, filled, at / kCodeGroup);
  std::memcpy(to + at, made, some * sizeof(To));
}

/// to[k] = value(code, g) of code k, of group g.
template <class Code, class Value>
inline __attribute__((always_inline)) void decode_groups(float* to, const Code* from, int n,
                                                         Value value) {
  by_groups(to, from, n, [&](float* __restrict values, const Code* __restrict codes, int g) {
    for (int k = 0; k < kCodeGroup; ++k) values[k] = value(codes[k], g);
  });
}

/// From the group of element `first` on; null without scales, to which no offset may be added.
inline std::uint16_t* scales_from(const Coded& array, std::int64_t first) {
  return array.scales ? static_cast<std::uint16_t*>(array.scales) + first / kCodeGroup : nullptr;
}

inline void decode(float* to, const Coded& from, std::int64_t first, int n) {
  const std::uint16_t* scales = scales_from(from, first);
  switch (from.codec) {
    case Codec::bf16_by_chance:
      return decode_groups(
          to, static_cast<const std::uint16_t*>(from.values) + first, n,
          [](std::uint16_t half, int) { return std::bit_cast<float>(bits_from_bf16(half)); });
    case Codec::softsign:
      return decode_groups(
          to, static_cast<const std::int8_t*>(from.values) + first, n,
          [&](std::int8_t code, int g) { return from_softsign_code(code, scale_of(scales[g])); });
    case Codec::root:
      return decode_groups(
          to, static_cast<const std::uint8_t*>(from.values) + first, n,
          [&](std::uint8_t code, int g) { return from_root_code(code, scale_of(scales[g])); });
  }
}

/// The random bits of one array, from a group on.
struct Draws {
  RandomStream stream;
  std::uint32_t first_word;

  Draws(const RoundingKey& key, std::int64_t first)
      : stream(stream_of(key)),
        first_word(static_cast<std::uint32_t>(first / kCodeGroup * kWords)) {}

  /// halves[k]: 16 bits for element k of group g.
  void of_group(std::uint32_t (&halves)[kCodeGroup], int g) const {
    const std::uint32_t word = first_word + static_cast<std::uint32_t>(g * kWords);
    for (int k = 0; k < kWords; ++k) {
      const std::uint32_t bits = random_word(stream, word + static_cast<std::uint32_t>(k));
      halves[k] = bits & 0xFFFFu;
      halves[k + kWords] = bits >> 16;
    }
  }
};

/// act(at, count) for the groups of n elements: kCodeGroup each, which is a constant where act is
/// inlined, but for the last one.
template <class Act>
inline __attribute__((always_inline)) void each_group(int n, Act act) {
  int at = 0;
  for (; at + kCodeGroup <= n; at += kCodeGroup) act(at, kCodeGroup);
  if (at < n) act(at, n - at);
}

/// Null where the codec keeps none, to which no offset may be added.
template <class C>
inline typename C::Rest* rest_from(const CodedWeight& weight, std::int64_t first) {
  return weight.rest ? static_cast<typename C::Rest*>(weight.rest) + first : nullptr;
}

template <class C>
inline void decode_weights(float* __restrict to, const CodedWeight& from, std::int64_t first,
                           int n) {
  const std::uint16_t* __restrict halves = from.parameter + first;
  const typename C::Rest* __restrict rest = rest_from<C>(from, first);
  each_group(n, [&](int at, int count) {
    for (int k = at; k < at + count; ++k)
      to[k] = std::bit_cast<float>(C::joined(halves[k], C::kByChance ? 0 : rest[k]));
  });
}

template <class C>
inline void encode_weights(const CodedWeight& to, const float* __restrict from, std::int64_t first,
                           int n, const RoundingKey& key) {
  std::uint16_t* __restrict halves = to.parameter + first;
  typename C::Rest* __restrict rest = rest_from<C>(to, first);
  const Draws draws(key, first);
  each_group(n, [&](int at, int count) {
    std::uint32_t random[kCodeGroup] = {};
    if constexpr (C::kByChance) draws.of_group(random, at / kCodeGroup);
    for (int k = 0; k < count; ++k) {
      const auto bits = std::bit_cast<std::uint32_t>(from[at + k]);
      halves[at + k] = C::parameter_of(bits, random[k]);
      if constexpr (!C::kByChance) rest[at + k] = C::rest_of(bits);
    }
  });
}

/// n <= kEdge elements from `first` on, a multiple of kCodeGroup.
inline void decode(float* to, const CodedWeight& from, std::int64_t first, int n) {
  switch (from.codec) {
    case WeightCodec::split:
      return decode_weights<Split>(to, from, first, n);
    case WeightCodec::split24:
      return decode_weights<Split24>(to, from, first, n);
    case WeightCodec::by_chance:
      return decode_weights<ByChance>(to, from, first, n);
  }
}

inline void encode(const CodedWeight& to, const float* from, std::int64_t first, int n,
                   const RoundingKey& key) {
  switch (to.codec) {
    case WeightCodec::split:
      return encode_weights<Split>(to, from, first, n, key);
    case WeightCodec::split24:
      return encode_weights<Split24>(to, from, first, n, key);
    case WeightCodec::by_chance:
      return encode_weights<ByChance>(to, from, first, n, key);
  }
}

inline void encode_bf16(std::uint16_t* to, const float* from, int n, const Draws& draws) {
  by_groups(to, from, n,
            [&](std::uint16_t* __restrict halves, const float* __restrict values, int g) {
              std::uint32_t random[kCodeGroup];
              draws.of_group(random, g);
              for (int k = 0; k < kCodeGroup; ++k)
                halves[k] = bf16_by_chance(std::bit_cast<std::uint32_t>(values[k]), random[k]);
            });
}

inline std::uint32_t greatest_bits(const float* values) {
  std::uint32_t greatest = 0;
  for (int k = 0; k < kCodeGroup; ++k) {
    const std::uint32_t bits = magnitude_of(values[k]);
    greatest = bits > greatest ? bits : greatest;
  }
  return greatest;
}

inline void encode_softsign(std::int8_t* to, std::uint16_t* scales, const float* from, int n,
                            const Draws& draws) {
  by_groups(to, from, n, [&](std::int8_t* __restrict codes, const float* __restrict values, int g) {
    std::uint32_t random[kCodeGroup];
    draws.of_group(random, g);
    scales[g] = group_scale(greatest_bits(values), kGreatestScale);
    const float inverse = inverse_of_code_scale(scales[g]);
    for (int k = 0; k < kCodeGroup; ++k)
      codes[k] =
          static_cast<std::int8_t>(softsign_code(values[k], inverse, fraction_of(random[k])));
  });
}

inline void encode_root(std::uint8_t* to, std::uint16_t* scales, const float* from, int n,
                        const Draws& draws) {
  by_groups(to, from, n,
            [&](std::uint8_t* __restrict codes, const float* __restrict values, int g) {
              std::uint32_t random[kCodeGroup];
              draws.of_group(random, g);
              float roots[kCodeGroup];
              for (int k = 0; k < kCodeGroup; ++k) roots[k] = not_negative(values[k]);
              for (int k = 0; k < kCodeGroup; k += Vector::width)
                store(roots + k, square_root(load(roots + k)));
              scales[g] = group_scale(greatest_bits(roots), kGreatestRootScale);
              const float inverse = inverse_of_code_scale(scales[g]);
              for (int k = 0; k < kCodeGroup; ++k)
                codes[k] =
                    static_cast<std::uint8_t>(root_code(roots[k], inverse, fraction_of(random[k])));
            });
}

/// n <= kEdge elements from `first` on, a multiple of kCodeGroup.
inline void encode(const Coded& to, const float* from, std::int64_t first, int n,
                   const RoundingKey& key) {
  const Draws draws(key, first);
  std::uint16_t* scales = scales_from(to, first);
  switch (to.codec) {
    case Codec::bf16_by_chance:
      return encode_bf16(static_cast<std::uint16_t*>(to.values) + first, from, n, draws);
    case Codec::softsign:
      return encode_softsign(static_cast<std::int8_t*>(to.values) + first, scales, from, n, draws);
    case Codec::root:
      return encode_root(static_cast<std::uint8_t*>(to.values) + first, scales, from, n, draws);
  }
}

}  // namespace
}  // namespace demi::kernels
