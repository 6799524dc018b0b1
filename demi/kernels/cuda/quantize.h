#pragma once

#include <cstdint>

#include "demi/kernels/codecs/block_scales.h"
#include "demi/kernels/codecs/narrow.h"
#include "demi/kernels/codecs/random_halves.h"
#include "demi/kernels/cuda/packets.h"
#include "demi/kernels/host_device.h"
#include "demi/kernels/quantize.h"
#include "demi/kernels/quantize_tiles.h"

// quantize.h by a device's threads. A thread has the elements of a block or, of FP32 scales, 32
// neighbours; down the columns it has two columns, whose codes may share a byte. The greatest
// magnitudes of rows, columns or the tensor are found by a launch before, with atomics: the
// greatest of some numbers is the same in any order. plugin.cu runs this on the device,
// testing/emulated_quantize.h on the host.
namespace demi::kernels::cuda {
namespace {

inline constexpr int kQuantizeThreads = 256;

DEMI_HOST_DEVICE bool by_columns(const Quantization& q) {
  return q.down && !is_of_tensor(q.scaling);
}

/// Elements of a thread.
struct QuantizeUnit {
  std::int64_t row, column, end_row, end_column;
};

DEMI_HOST_DEVICE int unit_length(const Quantization& q) {
  const int block = block_of(q.scaling);
  return block != 0 ? block : 32;
}
DEMI_HOST_DEVICE std::int64_t units_in_line(const Quantization& q) {
  return tiles_over(q.columns, by_columns(q) ? 2 : unit_length(q));
}
DEMI_HOST_DEVICE std::int64_t units_of(const Quantization& q) {
  return units_in_line(q) * (by_columns(q) ? tiles_over(q.rows, unit_length(q)) : q.rows);
}
DEMI_HOST_DEVICE QuantizeUnit unit_at(const Quantization& q, std::int64_t i) {
  const std::int64_t line = i / units_in_line(q), at = i % units_in_line(q);
  const int length = unit_length(q);
  const std::int64_t row = by_columns(q) ? line * length : line;
  const std::int64_t column = at * (by_columns(q) ? 2 : length);
  const std::int64_t end_row = row + (by_columns(q) ? length : 1);
  const std::int64_t end_column = column + (by_columns(q) ? 2 : length);
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
      if (!by_columns(q) || !is_of_rows(q.scaling)) {
        const std::uint32_t greatest = greatest_of_unit(q, unit, unit.column, unit.end_column);
        if (is_of_rows(q.scaling))
          raise_to(q.greatest[unit.row], greatest);
        else
          shared.of[t] = greatest;
        return;
      }
      for (std::int64_t c = unit.column; c < unit.end_column; ++c)
        raise_to(q.greatest[c], greatest_of_unit(q, unit, c, c + 1));
    } else if (t == 0 && !is_of_rows(q.scaling)) {
      std::uint32_t greatest = 0;
      for (int k = 0; k < kQuantizeThreads; ++k) greatest = greater_of(greatest, shared.of[k]);
      raise_to(q.greatest[0], greatest);
    }
  }
};

DEMI_HOST_DEVICE std::int64_t scale_place(const Quantization& q, std::int64_t row,
                                          std::int64_t column) {
  if (is_of_tensor(q.scaling)) return 0;
  if (is_of_rows(q.scaling)) return q.down ? column : row;
  const std::int64_t block = block_of(q.scaling);
  return q.down ? row / block * q.columns + column : row * blocks_along(q) + column / block;
}

template <class F, class Rounding>
struct QuantizeThreads {
  static DEMI_HOST_DEVICE void run(const Quantization& q, std::int64_t b, int t) {
    const std::int64_t i = b * kQuantizeThreads + t;
    if (i >= units_of(q)) return;
    const QuantizeUnit unit = unit_at(q, i);
    const TensorScale of =
        is_nv(q.scaling) ? nv_tensor_scale(q.scaling, *q.greatest) : TensorScale{};
    if (i == 0 && is_nv(q.scaling)) *q.tensor_scale = of.scale;
    const bool two = by_columns(q) && unit.column + 1 < unit.end_column;
    const std::int64_t first_end = by_columns(q) ? unit.column + 1 : unit.end_column;
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
    const std::int64_t place = scale_place(q, unit.row, column);
    if (block_of(q.scaling) == 0) {
      const float fp32 = fp32_scale(q.format, q.scaling, q.greatest[place]);
      const bool is_first = is_of_tensor(q.scaling) ? unit.row == 0 && column == 0
                            : q.down                ? unit.row == 0
                                                    : column == 0;
      if (is_first) static_cast<float*>(q.scales)[place] = fp32;
      return fp32;
    }
    const std::uint32_t greatest = greatest_of_unit(q, unit, column, end);
    const BlockScale<std::uint32_t> scale = is_nv(q.scaling) ? nv_scale(q.scaling, of, greatest)
                                            : q.scaling == Scaling::mx_floor
                                                ? mx_scale_down<F>(greatest)
                                                : mx_scale_up<F>(greatest);
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
    for (std::int64_t c = unit.column; c < unit.end_column; ++c) {
      const float factor = factor_at(q, scale_place(q, unit.row, c));
      for (std::int64_t r = unit.row; r < unit.end_row; ++r) {
        const float number = number_of<F>(code_at(q, r, c));
        store_one(q.to, q.storage, r * q.columns + c,
                  block_of(q.scaling) != 0 ? number * factor : number / factor);
      }
    }
  }

 private:
  static DEMI_HOST_DEVICE float factor_at(const Quantization& q, std::int64_t place) {
    if (block_of(q.scaling) == 0) return static_cast<const float*>(q.scales)[place];
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
inline bool finds_greatest(const Quantization& q) {
  return needs_greatest_of_tensor(q.scaling) || is_of_rows(q.scaling);
}
/// Words of q.greatest that it raises.
inline std::int64_t greatest_count(const Quantization& q) {
  return is_of_rows(q.scaling) ? scales_of(q) : 1;
}

}  // namespace
}  // namespace demi::kernels::cuda
