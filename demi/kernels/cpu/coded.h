#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "demi/kernels/codecs/bf16_by_chance.h"
#include "demi/kernels/codecs/companded.h"
#include "demi/kernels/codecs/random_halves.h"
#include "demi/kernels/codecs/weights.h"
#include "demi/kernels/cpu/words.h"

// Pieces of coded arrays to and from FP32, group by group. Internal linkage.
namespace demi::kernels {
namespace {

/// Elements of a piece at most.
inline constexpr int kEdge = 512;

/// act(g, arrays from group g on ...) for the groups of n elements. A last group that is not full
/// is filled up with zeros, and what is not const is copied back; a full one is worked on where it
/// lies, since a copy that is read in wider pieces than it was written in waits for memory.
template <class Act, class... Elements>
inline __attribute__((always_inline)) void by_groups(int n, Act act, Elements*... arrays) {
  int at = 0;
  for (; at + kCodeGroup <= n; at += kCodeGroup) act(at / kCodeGroup, (arrays + at)...);
  if (at == n) return;
  const auto filled = [&]<class T>(T* array) {
    struct Copy {
      T* array;
      std::remove_const_t<T> elements[kCodeGroup];
    } copy{array + at, {}};
    std::memcpy(copy.elements, copy.array, static_cast<std::size_t>(n - at) * sizeof(T));
    return copy;
  };
  const auto put_back = [&](auto& copy) {
    using T = std::remove_pointer_t<decltype(copy.array)>;
    if constexpr (!std::is_const_v<T>)
      std::memcpy(copy.array, copy.elements, static_cast<std::size_t>(n - at) * sizeof(T));
  };
  [&](auto... copies) {
    act(at / kCodeGroup, static_cast<Elements*>(copies.elements)...);
    (put_back(copies), ...);
  }(filled(arrays)...);
}

/// act(k, k × width) for the registers of a group.
template <class Act>
inline __attribute__((always_inline)) void each_register(Act act) {
#pragma GCC unroll 4
  for (int k = 0; k < kRegisters; ++k) act(k, k * kWidth);
}

/// From the group of element `first` on; null without scales, to which no offset may be added.
inline std::uint16_t* scales_from(const Coded& array, std::int64_t first) {
  return array.scales ? static_cast<std::uint16_t*>(array.scales) + first / kCodeGroup : nullptr;
}

/// to[k] = value(code, g) of code k, of group g.
template <class Code, class Value>
inline __attribute__((always_inline)) void decode_groups(float* to, const Code* from, int n,
                                                         Value value) {
  by_groups(
      n,
      [&](int g, float* values, const Code* codes) {
        each_register(
            [&](int, int at) { store_floats(values + at, value(words_at(codes + at), g)); });
      },
      to, from);
}

inline void decode(float* to, const Coded& from, std::int64_t first, int n) {
  const std::uint16_t* scales = scales_from(from, first);
  switch (from.codec) {
    case Codec::bf16_by_chance:
      return decode_groups(to, static_cast<const std::uint16_t*>(from.values) + first, n,
                           [](WordVector half, int) { return float_from(bits_from_bf16(half)); });
    case Codec::softsign:
      return decode_groups(to, static_cast<const std::uint8_t*>(from.values) + first, n,
                           [&](WordVector code, int g) {
                             return from_softsign_code(signed_of(code << 24) >> 24,
                                                       scale_of(scales[g]));
                           });
    case Codec::root:
      return decode_groups(to, static_cast<const std::uint8_t*>(from.values) + first, n,
                           [&](WordVector code, int g) {
                             return from_root_code(signed_of(code), scale_of(scales[g]));
                           });
  }
}

/// The random bits of one array, from a group on.
struct Draws {
  RandomStream stream;
  std::uint32_t first_word;

  Draws(RandomStream bits, std::int64_t first)
      : stream(bits), first_word(static_cast<std::uint32_t>(first / kCodeGroup * kWords)) {}

  /// 16 bits for each element of group g.
  struct Group {
    WordVector of[kRegisters];
  };
  Group of_group(int g) const {
    static constexpr std::uint32_t kCounts[kWords] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                      8, 9, 10, 11, 12, 13, 14, 15};
    const std::uint32_t word = first_word + static_cast<std::uint32_t>(g * kWords);
    Group halves;
    for (int k = 0; k < kRegisters / 2; ++k) {
      const auto counts = load_vector<WordVector>(kCounts + k * kWidth);
      const WordVector words = random_word(stream, counts + word);
      halves.of[k] = words & 0xFFFFu;
      halves.of[k + kRegisters / 2] = words >> 16;
    }
    return halves;
  }
};

/// Null where the codec keeps none, to which no offset may be added.
template <class C>
inline typename C::Rest* rest_from(const CodedWeight& weight, std::int64_t first) {
  return weight.rest ? static_cast<typename C::Rest*>(weight.rest) + first : nullptr;
}

template <class C>
inline void decode_weights(float* to, const CodedWeight& from, std::int64_t first, int n) {
  const std::uint16_t* halves = from.parameter + first;
  if constexpr (C::kByChance) {
    decode_groups(to, halves, n,
                  [](WordVector half, int) { return float_from(C::joined(half, WordVector{})); });
  } else {
    const typename C::Rest* rest = rest_from<C>(from, first);
    by_groups(
        n,
        [](int, float* values, const std::uint16_t* half, const typename C::Rest* other) {
          each_register([&](int, int at) {
            store_floats(values + at,
                         float_from(C::joined(words_at(half + at), words_at(other + at))));
          });
        },
        to, halves, rest);
  }
}

template <class C>
inline void encode_weights(const CodedWeight& to, const float* from, std::int64_t first, int n,
                           const Draws& draws) {
  std::uint16_t* halves = to.parameter + first;
  if constexpr (C::kByChance) {
    by_groups(
        n,
        [&](int g, std::uint16_t* half, const float* values) {
          const Draws::Group random = draws.of_group(g);
          each_register([&](int k, int at) {
            store_codes(half + at,
                        C::parameter_of(load_vector<WordVector>(values + at), random.of[k]));
          });
        },
        halves, from);
  } else {
    by_groups(
        n,
        [](int, std::uint16_t* half, typename C::Rest* other, const float* values) {
          each_register([&](int, int at) {
            const auto bits = load_vector<WordVector>(values + at);
            store_codes(half + at, C::parameter_of(bits));
            store_codes(other + at, C::rest_of(bits));
          });
        },
        halves, rest_from<C>(to, first), from);
  }
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
    case WeightCodec::split_fp16:
      return decode_weights<SplitFp16>(to, from, first, n);
  }
}

inline void encode(const CodedWeight& to, const float* from, std::int64_t first, int n,
                   const Draws& draws) {
  switch (to.codec) {
    case WeightCodec::split:
      return encode_weights<Split>(to, from, first, n, draws);
    case WeightCodec::split24:
      return encode_weights<Split24>(to, from, first, n, draws);
    case WeightCodec::by_chance:
      return encode_weights<ByChance>(to, from, first, n, draws);
    case WeightCodec::split_fp16:
      return encode_weights<SplitFp16>(to, from, first, n, draws);
  }
}

inline void encode_bf16(std::uint16_t* to, const float* from, int n, const Draws& draws) {
  by_groups(
      n,
      [&](int g, std::uint16_t* halves, const float* values) {
        const Draws::Group random = draws.of_group(g);
        each_register([&](int k, int at) {
          store_codes(halves + at,
                      bf16_by_chance(load_vector<WordVector>(values + at), random.of[k]));
        });
      },
      to, from);
}

/// Numbers of a group.
struct Numbers {
  FloatVector of[kRegisters];
};

inline std::uint32_t greatest_bits(const Numbers& numbers) {
  WordVector greatest{};
  each_register([&](int k, int) {
    const WordVector bits = magnitude_of(numbers.of[k]);
    greatest = bits > greatest ? bits : greatest;
  });
  return kernels::greatest(std::bit_cast<Vector::Bits>(greatest));
}

/// Codes of 8 bits: code(number, inverse scale, fraction) of number(value).
template <class Number, class Code>
inline __attribute__((always_inline)) void encode_grouped(const Coded& to, std::int64_t first,
                                                          const float* from, int n,
                                                          const Draws& draws, std::uint16_t most,
                                                          Number number, Code code) {
  std::uint16_t* scales = scales_from(to, first);
  by_groups(
      n,
      [&](int g, std::uint8_t* codes, const float* values) {
        const Draws::Group random = draws.of_group(g);
        Numbers numbers;
        each_register(
            [&](int k, int at) { numbers.of[k] = number(load_vector<FloatVector>(values + at)); });
        scales[g] = group_scale(greatest_bits(numbers), most);
        const float inverse = inverse_of_code_scale(scales[g]);
        each_register([&](int k, int at) {
          store_codes(codes + at, std::bit_cast<WordVector>(
                                      code(numbers.of[k], inverse, fraction_of(random.of[k]))) &
                                      0xFFu);
        });
      },
      static_cast<std::uint8_t*>(to.values) + first, from);
}

/// n <= kEdge elements from `first` on, a multiple of kCodeGroup.
inline void encode(const Coded& to, const float* from, std::int64_t first, int n,
                   const Draws& draws) {
  switch (to.codec) {
    case Codec::bf16_by_chance:
      return encode_bf16(static_cast<std::uint16_t*>(to.values) + first, from, n, draws);
    case Codec::softsign:
      return encode_grouped(
          to, first, from, n, draws, kGreatestScale, [](FloatVector x) { return x; },
          [](FloatVector x, float inverse, FloatVector fraction) {
            return softsign_code(x, inverse, fraction);
          });
    case Codec::root:
      return encode_grouped(
          to, first, from, n, draws, kGreatestRootScale,
          [](FloatVector x) { return square_root(not_negative(x)); },
          [](FloatVector x, float inverse, FloatVector fraction) {
            return root_code(x, inverse, fraction);
          });
  }
}

}  // namespace
}  // namespace demi::kernels
