#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "demi/kernels/codecs/bf16_by_chance.h"
#include "demi/kernels/codecs/companded.h"
#include "demi/kernels/codecs/random_halves.h"
#include "demi/kernels/cpu/vector.h"

// Pieces of coded arrays to and from FP32: groups of a fixed length in arrays of their own, of
// which the compiler makes vectors; the last group is filled up with zeros. Internal linkage.
namespace demi::kernels {
namespace {

/// Elements of a piece at most.
inline constexpr int kEdge = 512;

template <class T>
struct GroupOf {
  T v[kCodeGroup];

  GroupOf() = default;
  GroupOf(const T* from, int n) {
    if (n < kCodeGroup) std::memset(v, 0, sizeof v);
    std::memcpy(v, from, static_cast<std::size_t>(n) * sizeof(T));
  }
  void store(T* to, int n) const { std::memcpy(to, v, static_cast<std::size_t>(n) * sizeof(T)); }
};

/// act(at, n) for the groups of n elements.
template <class Act>
inline __attribute__((always_inline)) void each_group(int n, Act act) {
  int at = 0;
  for (; at + kCodeGroup <= n; at += kCodeGroup) act(at, kCodeGroup);
  if (at < n) act(at, n - at);
}

/// to[k] = value(code, g) of code k, of group g.
template <class Code, class Value>
inline __attribute__((always_inline)) void decode_groups(float* to, const Code* from, int n,
                                                         Value value) {
  each_group(n, [&](int at, int some) {
    const GroupOf<Code> codes(from + at, some);
    GroupOf<float> values;
    for (int k = 0; k < kCodeGroup; ++k) values.v[k] = value(codes.v[k], at / kCodeGroup);
    values.store(to + at, some);
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

  /// v[k] of the group that begins at `at`: 16 bits for element k.
  GroupOf<std::uint32_t> of_group(int at) const {
    const std::uint32_t word = first_word + static_cast<std::uint32_t>(at) / 2;
    GroupOf<std::uint32_t> halves;
    for (int k = 0; k < kWords; ++k) {
      const std::uint32_t bits = random_word(stream, word + static_cast<std::uint32_t>(k));
      halves.v[k] = bits & 0xFFFFu;
      halves.v[k + kWords] = bits >> 16;
    }
    return halves;
  }
};

inline void encode_bf16(std::uint16_t* to, const float* from, int n, const Draws& draws) {
  each_group(n, [&](int at, int some) {
    const GroupOf<float> values(from + at, some);
    const GroupOf<std::uint32_t> random = draws.of_group(at);
    GroupOf<std::uint16_t> halves;
    for (int k = 0; k < kCodeGroup; ++k)
      halves.v[k] = bf16_by_chance(std::bit_cast<std::uint32_t>(values.v[k]), random.v[k]);
    halves.store(to + at, some);
  });
}

inline std::uint32_t greatest_bits(const GroupOf<float>& values) {
  std::uint32_t greatest = 0;
  for (const float value : values.v) {
    const std::uint32_t bits = magnitude_of(value);
    greatest = bits > greatest ? bits : greatest;
  }
  return greatest;
}

inline void encode_softsign(std::int8_t* to, std::uint16_t* scales, const float* from, int n,
                            const Draws& draws) {
  each_group(n, [&](int at, int some) {
    const GroupOf<float> values(from + at, some);
    const GroupOf<std::uint32_t> random = draws.of_group(at);
    GroupOf<std::int8_t> codes;
    std::uint16_t& scale = scales[at / kCodeGroup];
    scale = group_scale(greatest_bits(values), kGreatestScale);
    const float inverse = inverse_of_code_scale(scale);
    for (int k = 0; k < kCodeGroup; ++k)
      codes.v[k] =
          static_cast<std::int8_t>(softsign_code(values.v[k], inverse, fraction_of(random.v[k])));
    codes.store(to + at, some);
  });
}

inline void encode_root(std::uint8_t* to, std::uint16_t* scales, const float* from, int n,
                        const Draws& draws) {
  each_group(n, [&](int at, int some) {
    const GroupOf<float> values(from + at, some);
    const GroupOf<std::uint32_t> random = draws.of_group(at);
    GroupOf<float> roots;
    GroupOf<std::uint8_t> codes;
    for (int k = 0; k < kCodeGroup; ++k) roots.v[k] = not_negative(values.v[k]);
    for (int k = 0; k < kCodeGroup; k += Vector::width)
      store(roots.v + k, square_root(load(roots.v + k)));
    std::uint16_t& scale = scales[at / kCodeGroup];
    scale = group_scale(greatest_bits(roots), kGreatestRootScale);
    const float inverse = inverse_of_code_scale(scale);
    for (int k = 0; k < kCodeGroup; ++k)
      codes.v[k] =
          static_cast<std::uint8_t>(root_code(roots.v[k], inverse, fraction_of(random.v[k])));
    codes.store(to + at, some);
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
