#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "demi/kernels/codecs/block_scales.h"
#include "demi/kernels/codecs/narrow.h"
#include "demi/kernels/codecs/random_halves.h"
#include "demi/kernels/quantize.h"
#include "demi/kernels/quantize_tiles.h"

// The passes of quantize.h, written once for one word and for the registers of an instruction set
// (W). A row is worked on in strips, whose numbers lie in FP32 in the first level cache and are
// filled up with zeros to a multiple of 32. Before this the including file defines
//
//   kWordLanes<W>                                words of W
//   load_vector<V>(array)                        W or Float<W> from as many elements
//   store_floats(array, x)                       and back
//   codes_at<W>(bytes), put_codes(bytes, W)      bytes as words and back
//   greatest_lane(W)                             the greatest word
//   widen_array, narrow_array                    those of CpuKernels
//
// Internal linkage.
namespace demi::kernels {
namespace {

struct StripRoom {
  alignas(64) float values[kStrip];
  alignas(64) std::uint8_t codes[kStrip];
};

/// The scales of a strip, or of a tile whose blocks have several rows: one a block or a column.
struct StripScales {
  alignas(64) std::uint32_t greatest[kTileColumns];
  alignas(64) float factors[kTileColumns];
  alignas(64) std::uint8_t codes[kTileColumns];
};

constexpr int filled_up(std::int64_t n) { return static_cast<int>((n + 31) / 32 * 32); }

/// act(column, n) for the strips of a tile.
template <class Act>
inline __attribute__((always_inline)) void each_strip(const QuantizeTile& tile, Act act) {
  for (std::int64_t column = tile.first_column; column < tile.end_column; column += kStrip) {
    const std::int64_t left = tile.end_column - column;
    act(column, left < kStrip ? static_cast<int>(left) : kStrip);
  }
}

/// The strip's numbers: where they lie, or in `room`.
inline const float* values_of_strip(const Quantization& q, std::int64_t row, std::int64_t column,
                                    int n, StripRoom& room) {
  const std::int64_t at = row * q.columns + column;
  if (q.storage == Storage::fp32 && n == filled_up(n))
    return static_cast<const float*>(q.from) + at;
  widen_array(room.values, static_cast<const std::byte*>(q.from) + at * bytes_of(q.storage),
              q.storage, n);
  for (int i = n; i < filled_up(n); ++i) room.values[i] = 0.0f;
  return room.values;
}

// E2M1: codes of a byte each to two in a byte and back, by vectors that the compiler makes.

inline void pack_codes(std::uint8_t* __restrict to, const std::uint8_t* __restrict from, int n) {
  for (int i = 0; i < n / 2; ++i)
    to[i] = static_cast<std::uint8_t>(from[2 * i] | from[2 * i + 1] << 4);
  if (n % 2 != 0) to[n / 2] = from[n - 1];
}

inline void unpack_codes(std::uint8_t* __restrict to, const std::uint8_t* __restrict from, int n) {
  for (int i = 0; i < n / 2; ++i) {
    to[2 * i] = from[i] & 0xF;
    to[2 * i + 1] = from[i] >> 4;
  }
  if (n % 2 != 0) to[n - 1] = from[n / 2] & 0xF;
}

inline std::uint8_t* codes_of_strip(const Quantization& q, std::int64_t row, std::int64_t column) {
  return q.codes + row * code_bytes(q.format, q.columns) +
         (q.format == NarrowFormat::e2m1 ? column / 2 : column);
}

/// Whether the strip's codes lie in memory as the loops have them, a byte each and filled up.
inline bool lie_as_bytes(const Quantization& q, int n) {
  return q.format != NarrowFormat::e2m1 && n == filled_up(n);
}

inline void put_strip(const Quantization& q, std::uint8_t* to, const std::uint8_t* codes, int n) {
  if (q.format == NarrowFormat::e2m1)
    pack_codes(to, codes, n);
  else if (to != codes)
    std::memcpy(to, codes, static_cast<std::size_t>(n));
}

/// The bits of the greatest magnitude of n numbers, n a multiple of 32.
template <class W>
inline std::uint32_t greatest_of_values(const float* values, int n) {
  W greatest{};
  for (int i = 0; i < n; i += kWordLanes<W>)
    greatest = greater_of(greatest, load_vector<W>(values + i) & kMagnitudeBits);
  return greatest_lane(greatest);
}

/// Of each block of 32 or 16. `values`: FP32 numbers or their bits.
template <class W, int block, class T>
inline void greatest_of_blocks(const T* values, int n, std::uint32_t* greatest) {
  for (int at = 0; at < n; at += block) {
    W most{};
#pragma GCC unroll 4
    for (int k = 0; k < block; k += kWordLanes<W>)
      most = greater_of(most, load_vector<W>(values + at + k) & kMagnitudeBits);
    greatest[at / block] = greatest_lane(most);
  }
}
/// Of each block, which may lie where the values do.
template <class W, class T>
inline void greatest_by_block(int block, const T* values, int n, std::uint32_t* greatest) {
  if (block == 16) return greatest_of_blocks<W, 16>(values, n, greatest);
  greatest_of_blocks<W, 32>(values, n, greatest);
  if (block == 32) return;
  const int in_block = block / 32, parts = n / 32;
  for (int at = 0; at < parts; at += in_block) {
    std::uint32_t most = 0;
    for (int k = at; k < parts && k < at + in_block; ++k) most = greater_of(most, greatest[k]);
    greatest[at / in_block] = most;
  }
}

/// Of the columns, so far.
template <class W>
inline void raise_columns(const float* values, int n, std::uint32_t* greatest) {
  for (int i = 0; i < n; i += kWordLanes<W>) {
    const W most =
        greater_of(load_vector<W>(greatest + i), load_vector<W>(values + i) & kMagnitudeBits);
    std::memcpy(greatest + i, &most, sizeof most);
  }
}

/// Codes and factors of n blocks from their greatest magnitudes.
template <class W>
inline void scale_strip(const Quantization& q, TensorScale of, int n, StripScales& scales) {
  const auto put = [&](auto scale_of_greatest) {
    for (int i = 0; i < n; i += kWordLanes<W>) {
      const BlockScale<W> scale = scale_of_greatest(load_vector<W>(scales.greatest + i));
      put_codes(scales.codes + i, scale.code);
      store_floats(scales.factors + i, scale.factor);
    }
  };
  if (is_nv(q.scaling)) return put([&](W greatest) { return nv_scale(q.scaling, of, greatest); });
  with_format(q.format, [&](auto format) {
    using F = decltype(format);
    if (q.scaling == Scaling::mx_floor)
      put([](W greatest) { return mx_scale_down<F>(greatest); });
    else
      put([](W greatest) { return mx_scale_up<F>(greatest); });
  });
}

/// Scales of n columns of a row, or of rows that share them.
inline int scales_over(const Quantization& q, int n) {
  return is_by_columns(q) ? n : static_cast<int>(blocks_over(n, block_of(q.scaling)));
}

/// The scales of `count` neighbours from their greatest magnitudes: written from `place` on unless
/// that is below 0, and what numbers are multiplied by.
template <class W>
void put_scales(const Quantization& q, TensorScale of, std::int64_t place, int count,
                StripScales& scales) {
  const int length = filled_up(count);
  if (has_fp32_scales(q.scaling)) {
    for (int i = 0; i < count; ++i)
      scales.factors[i] = fp32_scale(q.format, q.scaling, scales.greatest[i]);
    for (int i = count; i < length; ++i) scales.factors[i] = 0;
    if (place < 0) return;
    std::memcpy(static_cast<float*>(q.scales) + place, scales.factors,
                static_cast<std::size_t>(count) * sizeof(float));
  } else {
    for (int i = count; i < length; ++i) scales.greatest[i] = 0;
    scale_strip<W>(q, of, length, scales);
    std::memcpy(static_cast<std::uint8_t*>(q.scales) + place, scales.codes,
                static_cast<std::size_t>(count));
  }
}

/// Codes of n numbers, n a multiple of 32, times factors[i] or, along a row, factors[i >> shift].
/// `first` is the first number's place among the random bits.
using EncodeStrip = void (*)(const float* values, int n, const float* factors, int shift,
                             RandomStream stream, std::int64_t first, std::uint8_t* codes);

template <class W, class F, class Rounding, bool by_column>
void encode_strip(const float* values, int n, const float* factors, int shift, RandomStream stream,
                  std::int64_t first, std::uint8_t* codes) {
  static constexpr std::uint32_t kCounts[kWords] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                    8, 9, 10, 11, 12, 13, 14, 15};
  const auto encode = [&](int at, W random) __attribute__((always_inline)) {
    Float<W> factor;
    if constexpr (by_column)
      factor = load_vector<Float<W>>(factors + at);
    else
      factor = all_floats<W>(factors[at >> shift]);
    put_codes(codes + at, scaled_code<F, Rounding>(load_vector<W>(values + at), factor, random));
  };
  auto word = static_cast<std::uint32_t>(first / kCodeGroup * kWords);
  for (int at = 0; at < n; at += kCodeGroup, word += kWords)
#pragma GCC unroll 2
    for (int k = 0; k < kWords; k += kWordLanes<W>) {
      W random{};
      if constexpr (Rounding::kDraws)
        random = random_word(stream, load_vector<W>(kCounts + k) + word);
      encode(at + k, random & 0xFFFFu);
      encode(at + k + kWords, random >> 16);
    }
}

template <class W, bool by_column>
EncodeStrip encode_by(const Quantization& q) {
  EncodeStrip encode = nullptr;
  with_format(q.format, [&](auto format) {
    using F = decltype(format);
    encode = q.by_chance ? encode_strip<W, F, ByFraction, by_column>
                         : encode_strip<W, F, ToNearest, by_column>;
  });
  return encode;
}

/// 31: one factor of a whole strip.
inline int shift_of(const Quantization& q) {
  const int block = block_of(q.scaling);
  return block != 0 ? std::countr_zero(static_cast<unsigned>(block)) : 31;
}

inline RandomStream stream_of(const Quantization& q) {
  return q.by_chance ? stream_of(q.key) : RandomStream{};
}

inline TensorScale tensor_scale_of(const Quantization& q) {
  return is_nv(q.scaling) ? nv_tensor_scale(q.scaling, *q.greatest) : TensorScale{};
}

template <class W>
void quantize_along_rows(const Quantization& q, const QuantizeTile& tile) {
  StripRoom room;
  StripScales scales;
  const int block = block_of(q.scaling);
  const ScaleGrid grid = grid_of(q);
  const EncodeStrip encode = encode_by<W, false>(q);
  const RandomStream stream = stream_of(q);
  const TensorScale of = tensor_scale_of(q);
  if (is_of_tensor(q.scaling)) scales.factors[0] = fp32_scale(q.format, q.scaling, *q.greatest);
  for (std::int64_t row = tile.first_row; row < tile.end_row; ++row) {
    if (is_of_rows(q.scaling)) {
      std::uint32_t greatest = 0;
      each_strip(tile, [&](std::int64_t column, int n) {
        const float* values = values_of_strip(q, row, column, n, room);
        greatest = greater_of(greatest, greatest_of_values<W>(values, filled_up(n)));
      });
      scales.greatest[0] = greatest;
      put_scales<W>(q, of, row, 1, scales);
    }
    each_strip(tile, [&](std::int64_t column, int n) {
      const int length = filled_up(n);
      const float* values = values_of_strip(q, row, column, n, room);
      if (block) {
        greatest_by_block<W>(block, values, length, scales.greatest);
        put_scales<W>(q, of, grid.place(row, column), scales_over(q, n), scales);
      }
      std::uint8_t* to = codes_of_strip(q, row, column);
      std::uint8_t* codes = lie_as_bytes(q, n) ? to : room.codes;
      encode(values, length, scales.factors, shift_of(q), stream, first_draw(q, row) + column,
             codes);
      put_strip(q, to, codes, n);
    });
  }
}

/// act(first_row, end_row) for the rows of a tile that share scales.
template <class Act>
inline void each_band(const Quantization& q, const QuantizeTile& tile, Act act) {
  const std::int64_t block = grid_of(q).block_rows;
  for (std::int64_t row = tile.first_row; row < tile.end_row; row += block)
    act(row, row + block < tile.end_row ? row + block : tile.end_row);
}

template <class W>
void quantize_across_rows(const Quantization& q, const QuantizeTile& tile) {
  StripRoom room;
  StripScales scales;
  const bool square = is_square(q.scaling);
  const ScaleGrid grid = grid_of(q);
  const EncodeStrip encode = square ? encode_by<W, false>(q) : encode_by<W, true>(q);
  const RandomStream stream = stream_of(q);
  const TensorScale of = tensor_scale_of(q);
  const bool is_known = needs_greatest_of_columns(q);
  const auto columns = static_cast<int>(tile.end_column - tile.first_column);
  each_band(q, tile, [&](std::int64_t first_row, std::int64_t end_row) {
    for (int i = 0; i < filled_up(columns); ++i)
      scales.greatest[i] = is_known && i < columns ? q.greatest[tile.first_column + i] : 0;
    for (std::int64_t row = first_row; row < end_row && !is_known; ++row)
      each_strip(tile, [&](std::int64_t column, int n) {
        raise_columns<W>(values_of_strip(q, row, column, n, room), filled_up(n),
                         scales.greatest + (column - tile.first_column));
      });
    if (square)
      greatest_by_block<W>(block_of(q.scaling), scales.greatest, filled_up(columns),
                           scales.greatest);
    const bool is_anothers = is_known && first_row > 0;  // the first tile of the columns writes
    put_scales<W>(q, of, is_anothers ? -1 : grid.place(first_row, tile.first_column),
                  scales_over(q, columns), scales);
    for (std::int64_t row = first_row; row < end_row; ++row)
      each_strip(tile, [&](std::int64_t column, int n) {
        const float* values = values_of_strip(q, row, column, n, room);
        const float* factors = scales.factors + (column - tile.first_column) / grid.block_columns;
        std::uint8_t* to = codes_of_strip(q, row, column);
        std::uint8_t* codes = lie_as_bytes(q, n) ? to : room.codes;
        encode(values, filled_up(n), factors, shift_of(q), stream, first_draw(q, row) + column,
               codes);
        put_strip(q, to, codes, n);
      });
  });
}

/// Numbers of n codes, n a multiple of 32, times their factors or, of FP32 scales, divided by them.
using DecodeStrip = void (*)(const std::uint8_t* codes, int n, const float* factors, int shift,
                             float* values);

template <class W, class F, bool by_column, bool divides>
void decode_strip(const std::uint8_t* codes, int n, const float* factors, int shift,
                  float* values) {
  for (int at = 0; at < n; at += kWordLanes<W>) {
    Float<W> factor;
    if constexpr (by_column)
      factor = load_vector<Float<W>>(factors + at);
    else
      factor = all_floats<W>(factors[at >> shift]);
    const Float<W> number = number_of<F>(codes_at<W>(codes + at));
    store_floats(values + at, divides ? number / factor : number * factor);
  }
}

template <class W, bool by_column>
DecodeStrip decode_by(const Quantization& q) {
  DecodeStrip decode = nullptr;
  with_format(q.format, [&](auto format) {
    using F = decltype(format);
    decode = has_fp32_scales(q.scaling) ? decode_strip<W, F, by_column, true>
                                        : decode_strip<W, F, by_column, false>;
  });
  return decode;
}

/// The factors of n scales from `place` on.
template <class W>
inline void read_scales(const Quantization& q, std::int64_t place, int n, StripScales& scales) {
  const auto bytes = static_cast<std::size_t>(n);
  if (has_fp32_scales(q.scaling)) {
    std::memcpy(scales.factors, static_cast<const float*>(q.scales) + place, bytes * sizeof(float));
    return;
  }
  std::memcpy(scales.codes, static_cast<const std::uint8_t*>(q.scales) + place, bytes);
  for (int i = n; i < filled_up(n); ++i) scales.codes[i] = 0;
  for (int i = 0; i < n; i += kWordLanes<W>) {
    const W code = codes_at<W>(scales.codes + i);
    store_floats(scales.factors + i, is_nv(q.scaling) ? number_of<E4m3>(code) * *q.tensor_scale
                                                      : power_from_e8m0(code));
  }
}

inline void decode_row(const Quantization& q, DecodeStrip decode, std::int64_t row,
                       std::int64_t column, int n, const float* factors, StripRoom& room) {
  const std::uint8_t* codes = codes_of_strip(q, row, column);
  if (!lie_as_bytes(q, n)) {
    if (q.format == NarrowFormat::e2m1)
      unpack_codes(room.codes, codes, n);
    else
      std::memcpy(room.codes, codes, static_cast<std::size_t>(n));
    for (int i = n; i < filled_up(n); ++i) room.codes[i] = 0;
    codes = room.codes;
  }
  std::byte* to = static_cast<std::byte*>(q.to) + (row * q.columns + column) * bytes_of(q.storage);
  const bool is_direct = q.storage == Storage::fp32 && n == filled_up(n);
  float* values = is_direct ? reinterpret_cast<float*>(to) : room.values;
  decode(codes, filled_up(n), factors, shift_of(q), values);
  if (!is_direct) narrow_array(to, q.storage, values, n);
}

template <class W>
void dequantize_along_rows(const Quantization& q, const QuantizeTile& tile) {
  StripRoom room;
  StripScales scales;
  const ScaleGrid grid = grid_of(q);
  const DecodeStrip decode = decode_by<W, false>(q);
  for (std::int64_t row = tile.first_row; row < tile.end_row; ++row)
    each_strip(tile, [&](std::int64_t column, int n) {
      read_scales<W>(q, grid.place(row, column), scales_over(q, n), scales);
      decode_row(q, decode, row, column, n, scales.factors, room);
    });
}

template <class W>
void dequantize_down_columns(const Quantization& q, const QuantizeTile& tile) {
  StripRoom room;
  StripScales scales;
  const ScaleGrid grid = grid_of(q);
  const DecodeStrip decode = decode_by<W, true>(q);
  const auto columns = static_cast<int>(tile.end_column - tile.first_column);
  each_band(q, tile, [&](std::int64_t first_row, std::int64_t end_row) {
    read_scales<W>(q, grid.place(first_row, tile.first_column), columns, scales);
    for (int i = columns; i < filled_up(columns); ++i) scales.factors[i] = 1.0f;
    for (std::int64_t row = first_row; row < end_row; ++row)
      each_strip(tile, [&](std::int64_t column, int n) {
        decode_row(q, decode, row, column, n, scales.factors + (column - tile.first_column), room);
      });
  });
}

/// The scales of the whole tensor, which all pieces compute and the first one writes.
inline void put_tensor_scale(const Quantization& q) {
  if (is_nv(q.scaling)) *q.tensor_scale = nv_tensor_scale(q.scaling, *q.greatest).scale;
  if (is_of_tensor(q.scaling))
    *static_cast<float*>(q.scales) = fp32_scale(q.format, q.scaling, *q.greatest);
}

template <class W>
void quantize_pieces_by(const Quantization& q, std::int64_t begin, std::int64_t end) {
  if (begin == 0 && end > 0) put_tensor_scale(q);
  for (std::int64_t i = begin; i < end; ++i)
    shares_across_rows(q) ? quantize_across_rows<W>(q, tile_at(q, i))
                          : quantize_along_rows<W>(q, tile_at(q, i));
}

template <class W>
void dequantize_pieces_by(const Quantization& q, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i)
    is_by_columns(q) ? dequantize_down_columns<W>(q, tile_at(q, i))
                     : dequantize_along_rows<W>(q, tile_at(q, i));
}

template <class W>
void raise_greatest_of_columns_by(const Quantization& q, std::int64_t begin, std::int64_t end,
                                  std::uint32_t* greatest) {
  StripRoom room;
  for (std::int64_t row = begin; row < end; ++row)
    each_strip({0, 1, 0, q.columns}, [&](std::int64_t column, int n) {
      raise_columns<W>(values_of_strip(q, row, column, n, room), filled_up(n), greatest + column);
    });
}

template <class W>
std::uint32_t greatest_magnitude_by(const void* values, Storage storage, std::int64_t n) {
  StripRoom room;
  Quantization q{};
  q.rows = 1;
  q.columns = n;
  q.from = values;
  q.storage = storage;
  std::uint32_t greatest = 0;
  each_strip({0, 1, 0, n}, [&](std::int64_t column, int length) {
    const float* strip = values_of_strip(q, 0, column, length, room);
    greatest = greater_of(greatest, greatest_of_values<W>(strip, filled_up(length)));
  });
  return greatest;
}

}  // namespace
}  // namespace demi::kernels
