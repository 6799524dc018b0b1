#pragma once

#include <cstdint>

#include "demi/kernels/codecs/block_scales.h"
#include "demi/kernels/codecs/narrow.h"
#include "demi/kernels/codecs/random_halves.h"
#include "demi/kernels/cuda/packets.h"
#include "demi/kernels/host_device.h"
#include "demi/kernels/quantize.h"
#include "demi/kernels/quantize_tiles.h"

// quantize.h by a device's threads. A thread has a row of a block, 32 elements of it at most; down
// the columns it has two columns, whose codes may share a byte. Greatest magnitudes among the
// elements of more threads are found by a launch before, with atomics: the greatest of some numbers
// is the same in any order. plugin.cu runs this on the device,
// testing/emulated_quantize.h on the host.
namespace demi::kernels::cuda {
namespace {

inline constexpr int kQuantizeThreads = 256;

/// Elements of a thread.
struct QuantizeUnit {
  std::int64_t row, column, end_row, end_column;
};

DEMI_HOST_DEVICE int unit_length(const Quantization& q) {
  return block_of(q.scaling) == 16 ? 16 : 32;
}
DEMI_HOST_DEVICE std::int64_t units_in_line(const Quantization& q) {
  return tiles_over(q.columns, is_by_columns(q) ? 2 : unit_length(q));
}
DEMI_HOST_DEVICE std::int64_t units_of(const Quantization& q) {
  return units_in_line(q) * (is_by_columns(q) ? tiles_over(q.rows, unit_length(q)) : q.rows);
}
DEMI_HOST_DEVICE QuantizeUnit unit_at(const Quantization& q, std::int64_t i) {
  const std::int64_t line = i / units_in_line(q), at = i % units_in_line(q);
  const int length = unit_length(q);
  const std::int64_t row = is_by_columns(q) ? line * length : line;
  const std::int64_t column = at * (is_by_columns(q) ? 2 : length);
  const std::int64_t end_row = row + (is_by_columns(q) ? length : 1);
  const std::int64_t end_column = column + (is_by_columns(q) ? 2 : length);
  return {row, column, end_row < q.rows ? end_row : q.rows,
          end_column < q.columns ? end_column : q.columns};
}

inline std::int64_t thread_blocks_of(const Quantization& q) {
  return tiles_over(units_of(q), kQuantizeThreads);
}

/// The bits of the greatest magnitude among the columns [column, end_column) of the unit's rows.
DEMI_HOST_DEVICE std::uint32_t greatest_of_unit(const Quantization& q, const QuantizeUnit& unit,
                                                std::int64_t column, std::int64_t end_column) {
  std::uint32_t greatest = 0;
  for (std::int64_t r = unit.row; r < unit.end_row; ++r)
    for (std::int64_t c = column; c < end_column; ++c)
      greatest = greater_of(
          greatest, std::bit_cast<std::uint32_t>(load_one(q.from, q.storage, r * q.columns + c)) &
                        kMagnitudeBits);
  return greatest;
}

DEMI_HOST_DEVICE void raise_to(std::uint32_t& at, std::uint32_t value) {
#if defined(__CUDA_ARCH__)
  atomicMax(&at, value);
#else
  if (at < value) at = value;
#endif
}

/// Raises q.greatest, which begins with zeros.
struct FindGreatest {
  struct Shared {
    std::uint32_t of[kQuantizeThreads];
  };
  static constexpr int phases = 2;

  static DEMI_HOST_DEVICE void phase(int p, const Quantization& q, std::int64_t b, int t,
                                     Shared& shared) {
    if (p == 0) {
      const std::int64_t i = b * kQuantizeThreads + t;
      shared.of[t] = 0;
      if (i >= units_of(q)) return;
      const QuantizeUnit unit = unit_at(q, i);
      if (needs_greatest_of_tensor(q.scaling))
        shared.of[t] = greatest_of_unit(q, unit, unit.column, unit.end_column);
      if (is_of_tensor(q.scaling) || !finds_greatest_of_scales(q)) return;
      const ScaleGrid grid = grid_of(q);
      std::uint32_t* const of_scales = q.greatest + first_greatest_of_scales(q);
      const std::int64_t step = is_by_columns(q) ? 1 : unit_length(q);
      for (std::int64_t c = unit.column; c < unit.end_column; c += step)
        raise_to(of_scales[grid.place(unit.row, c)],
                 greatest_of_unit(q, unit, c, lesser_of(c + step, unit.end_column)));
    } else if (t == 0 && needs_greatest_of_tensor(q.scaling)) {
      std::uint32_t greatest = 0;
      for (int k = 0; k < kQuantizeThreads; ++k) greatest = greater_of(greatest, shared.of[k]);
      raise_to(q.greatest[0], greatest);
    }
  }
};

template <class F, class Rounding>
struct QuantizeThreads {
  static DEMI_HOST_DEVICE void run(const Quantization& q, std::int64_t b, int t) {
    const std::int64_t i = b * kQuantizeThreads + t;
    if (i >= units_of(q)) return;
    const QuantizeUnit unit = unit_at(q, i);
    const TensorScale of =
        is_nv(q.scaling) ? nv_tensor_scale(q.scaling, *q.greatest) : TensorScale{};
    if (i == 0 && is_nv(q.scaling)) *q.tensor_scale = of.scale;
    const bool two = is_by_columns(q) && unit.column + 1 < unit.end_column;
    const std::int64_t first_end = is_by_columns(q) ? unit.column + 1 : unit.end_column;
    const float factor = scale(q, of, unit, unit.column, first_end);
    const float second = two ? scale(q, of, unit, unit.column + 1, unit.end_column) : factor;
    const RandomStream stream = Rounding::kDraws ? stream_of(q.key) : RandomStream{};
    for (std::int64_t r = unit.row; r < unit.end_row; ++r)
      for (std::int64_t c = unit.column; c < unit.end_column; c += 2) {
        const std::uint32_t low = code(q, stream, r, c, factor);
        const std::uint32_t high = c + 1 < unit.end_column ? code(q, stream, r, c + 1, second) : 0;
        put(q, r, c, low, high);
      }
  }

 private:
  /// Writes the scale of the unit's columns [column, end) where that is this thread's, and gives
  /// what they are multiplied by.
  static DEMI_HOST_DEVICE float scale(const Quantization& q, TensorScale of,
                                      const QuantizeUnit& unit, std::int64_t column,
                                      std::int64_t end) {
    const ScaleGrid grid = grid_of(q);
    const std::int64_t place = grid.place(unit.row, column);
    const bool is_first = unit.row % grid.block_rows == 0 && column % grid.block_columns == 0;
    const std::uint32_t greatest = finds_greatest_of_scales(q)
                                       ? q.greatest[first_greatest_of_scales(q) + place]
                                       : greatest_of_unit(q, unit, column, end);
    if (has_fp32_scales(q.scaling)) {
      const float fp32 = fp32_scale(q.format, q.scaling, greatest);
      if (is_first) static_cast<float*>(q.scales)[place] = fp32;
      return fp32;
    }
    const BlockScale<std::uint32_t> scale = is_nv(q.scaling) ? nv_scale(q.scaling, of, greatest)
                                            : q.scaling == Scaling::mx_floor
                                                ? mx_scale_down<F>(greatest)
                                                : mx_scale_up<F>(greatest);
    if (is_first)
      static_cast<std::uint8_t*>(q.scales)[place] = static_cast<std::uint8_t>(scale.code);
    return scale.factor;
  }

  static DEMI_HOST_DEVICE std::uint32_t code(const Quantization& q, RandomStream stream,
                                             std::int64_t r, std::int64_t c, float factor) {
    const float x = load_one(q.from, q.storage, r * q.columns + c);
    const std::uint32_t random = Rounding::kDraws ? random_half(stream, first_draw(q, r) + c) : 0u;
    return scaled_code<F, Rounding>(std::bit_cast<std::uint32_t>(x), factor, random);
  }

  static DEMI_HOST_DEVICE void put(const Quantization& q, std::int64_t r, std::int64_t c,
                                   std::uint32_t low, std::uint32_t high) {
    std::uint8_t* const row = q.codes + r * code_bytes(F::kFormat, q.columns);
    if constexpr (F::kFormat == NarrowFormat::e2m1) {
      row[c / 2] = static_cast<std::uint8_t>(low | high << 4);
    } else {
      row[c] = static_cast<std::uint8_t>(low);
      if (c + 1 < q.columns) row[c + 1] = static_cast<std::uint8_t>(high);
    }
  }
};

template <class F>
struct DequantizeThreads {
  static DEMI_HOST_DEVICE void run(const Quantization& q, std::int64_t b, int t) {
    const std::int64_t i = b * kQuantizeThreads + t;
    if (i >= units_of(q)) return;
    const QuantizeUnit unit = unit_at(q, i);
    const ScaleGrid grid = grid_of(q);
    for (std::int64_t c = unit.column; c < unit.end_column; ++c) {
      const float factor = factor_at(q, grid.place(unit.row, c));
      for (std::int64_t r = unit.row; r < unit.end_row; ++r) {
        const float number = number_of<F>(code_at(q, r, c));
        store_one(q.to, q.storage, r * q.columns + c,
                  has_fp32_scales(q.scaling) ? number / factor : number * factor);
      }
    }
  }

 private:
  static DEMI_HOST_DEVICE float factor_at(const Quantization& q, std::int64_t place) {
    if (has_fp32_scales(q.scaling)) return static_cast<const float*>(q.scales)[place];
    const std::uint32_t code = static_cast<const std::uint8_t*>(q.scales)[place];
    return is_nv(q.scaling) ? number_of<E4m3>(code) * *q.tensor_scale : power_from_e8m0(code);
  }
  static DEMI_HOST_DEVICE std::uint32_t code_at(const Quantization& q, std::int64_t r,
                                                std::int64_t c) {
    const std::uint8_t* const row = q.codes + r * code_bytes(F::kFormat, q.columns);
    if constexpr (F::kFormat != NarrowFormat::e2m1) return row[c];
    return c % 2 == 0 ? row[c / 2] & 0xFu : row[c / 2] >> 4;
  }
};

/// act(body) with the body that quantizes, or dequantizes.
template <class Act>
void with_quantize(const Quantization& q, Act act) {
  with_format(q.format, [&](auto format) {
    using F = decltype(format);
    if (q.by_chance)
      act(QuantizeThreads<F, ByFraction>());
    else
      act(QuantizeThreads<F, ToNearest>());
  });
}
template <class Act>
void with_dequantize(const Quantization& q, Act act) {
  with_format(q.format, [&](auto format) { act(DequantizeThreads<decltype(format)>()); });
}

/// Whether FindGreatest is launched first.
inline bool finds_greatest(const Quantization& q) { return greatest_words(q) > 0; }

}  // namespace
}  // namespace demi::kernels::cuda
