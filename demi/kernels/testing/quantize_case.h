#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "demi/kernels/codecs/random_halves.h"
#include "demi/kernels/cpu_kernels.h"
#include "demi/kernels/quantize.h"
#include "demi/kernels/testing/narrow_table.h"
#include "demi/kernels/testing/special_values.h"
#include "demi/kernels/testing/stored_array.h"

namespace demi::kernels::testing {

inline constexpr Scaling kScalings[] = {Scaling::tensor,
                                        Scaling::tensor_power_of_two,
                                        Scaling::row,
                                        Scaling::row_power_of_two,
                                        Scaling::mx_ceil,
                                        Scaling::mx_floor,
                                        Scaling::nv,
                                        Scaling::nv_torchao,
                                        Scaling::nv_square,
                                        Scaling::block_128,
                                        Scaling::square_128,
                                        Scaling::block_128_power_of_two,
                                        Scaling::square_128_power_of_two};

struct QuantizeShape {
  NarrowFormat format;
  Scaling scaling;
  bool down;
  std::int64_t rows, columns;
  Storage storage = Storage::fp32;
  bool by_chance = false;
};

/// A matrix, its codes and what they stand for.
struct QuantizeCase {
  QuantizeShape shape;
  StoredArray from, to;
  std::vector<std::uint8_t> codes, scales;
  float tensor_scale = 0;
  std::vector<std::uint32_t> greatest;

  explicit QuantizeCase(const QuantizeShape& of, std::uint32_t seed = 1)
      : shape(of), from(of.storage, of.rows * of.columns), to(of.storage, of.rows * of.columns) {
    std::mt19937 random(seed);
    for (std::int64_t i = 0; i < size(); ++i) {
      // Blocks of all magnitudes, with zeros and both signs.
      const int binade = static_cast<int>(random() % 12) - 6 - static_cast<int>(i / 64 % 5) * 4;
      const float mantissa =
          std::bit_cast<float>(static_cast<std::uint32_t>(0x3F800000u | (random() >> 9)));
      const float x = random() % 16 == 0 ? 0.0f : std::ldexp(mantissa, binade);
      from.set(i, random() % 2 == 0 ? x : -x);
    }
    const Quantization q = described();
    codes.assign(static_cast<std::size_t>(of.rows * code_bytes(of.format, of.columns)) + 1, 0xA5);
    scales.assign(static_cast<std::size_t>(scales_of(q) * scale_bytes()) + 1, 0xA5);
    greatest.assign(static_cast<std::size_t>(greatest_words(q) + kCodeGroup), 0);
  }

  std::int64_t size() const { return shape.rows * shape.columns; }
  int scale_bytes() const { return has_fp32_scales(shape.scaling) ? 4 : 1; }
  Quantization described() {
    return {shape.format,  shape.scaling,   shape.down,      shape.rows,   shape.columns,
            from.data(),   to.data(),       shape.storage,   codes.data(), scales.data(),
            &tensor_scale, greatest.data(), shape.by_chance, {7, 3, 1, 5}};
  }
  std::uint32_t greatest_of_all() const {
    std::uint32_t most = 0;
    for (std::int64_t i = 0; i < size(); ++i)
      most = std::max(most, std::bit_cast<std::uint32_t>(from[i]) & 0x7FFFFFFFu);
    return most;
  }

  /// Runs the passes, the pieces from the last to the first.
  void run(const CpuKernels& kernels) {
    const Quantization q = described();
    if (needs_greatest_of_columns(q)) {  // in two ranges of rows, as threads have them
      kernels.raise_greatest_of_columns(q, shape.rows / 2, shape.rows, greatest.data());
      kernels.raise_greatest_of_columns(q, 0, shape.rows / 2, greatest.data());
    } else {
      greatest[0] = kernels.greatest_magnitude(from.data(), shape.storage, size());
    }
    for (std::int64_t piece = pieces_of(q) - 1; piece >= 0; --piece)
      kernels.quantize(q, piece, piece + 1);
    for (std::int64_t piece = pieces_of(q) - 1; piece >= 0; --piece)
      kernels.dequantize(q, piece, piece + 1);
  }

  std::uint32_t code_at(std::int64_t row, std::int64_t column) const {
    const std::int64_t bytes = code_bytes(shape.format, shape.columns);
    if (shape.format != NarrowFormat::e2m1)
      return codes[static_cast<std::size_t>(row * bytes + column)];
    const std::uint8_t two = codes[static_cast<std::size_t>(row * bytes + column / 2)];
    return column % 2 == 0 ? two & 0xFu : two >> 4;
  }
  float value_at(std::int64_t row, std::int64_t column) const {
    return from[row * shape.columns + column];
  }
  bool has_room_behind() const {
    return codes.back() == 0xA5 && scales.back() == 0xA5 && to.is_whole();
  }
};

/// The same by one block after the other, in the words of the definitions.
class PlainQuantizer {
 public:
  explicit PlainQuantizer(QuantizeCase& of)
      : of_(of),
        q_(of.described()),
        table_(of.shape.format),
        e4m3_(NarrowFormat::e4m3),
        greatest_(std::bit_cast<float>(of.greatest_of_all())) {}

  /// act(scale's number among scales, its elements' rows and columns).
  template <class Act>
  void each_block(Act act) const {
    const QuantizeShape& s = of_.shape;
    if (is_of_tensor(s.scaling)) return act(0, 0, s.rows, 0, s.columns);
    const std::int64_t block = block_of(s.scaling);
    if (is_square(s.scaling)) {
      std::int64_t k = 0;
      for (std::int64_t row = 0; row < s.rows; row += block)
        for (std::int64_t column = 0; column < s.columns; column += block)
          act(k++, row, std::min(row + block, s.rows), column, std::min(column + block, s.columns));
      return;
    }
    const std::int64_t lines = s.down ? s.columns : s.rows, length = s.down ? s.rows : s.columns;
    const std::int64_t step = block != 0 ? block : std::max<std::int64_t>(length, 1);
    for (std::int64_t line = 0; line < lines; ++line)
      for (std::int64_t at = 0, k = 0; at < std::max<std::int64_t>(length, block == 0);
           at += step, ++k) {
        const std::int64_t end = std::min(at + step, length);
        if (s.down)
          act(k * s.columns + line, at, end, line, line + 1);
        else
          act(line * ((length + step - 1) / step) + k, line, line + 1, at, end);
      }
  }

  struct Block {
    std::uint32_t scale_bits;  // a code of 8 bits, or those of FP32
    float factor;              // numbers are multiplied by it
    float number;              // codes are: by it, or divided by it
  };

  Block block_of_greatest(float amax) const {
    const double max = table_.greatest();
    switch (of_.shape.scaling) {
      case Scaling::tensor:
      case Scaling::row:
      case Scaling::tensor_power_of_two:
      case Scaling::row_power_of_two:
      case Scaling::block_128:
      case Scaling::block_128_power_of_two:
      case Scaling::square_128:
      case Scaling::square_128_power_of_two: {
        auto scale = static_cast<float>(max / std::max(double{amax}, 1e-12));
        if (rounds_to_power_of_two(of_.shape.scaling)) scale = std::ldexp(1.0f, std::ilogb(scale));
        if (!std::isfinite(amax)) scale = kNaN;
        return {std::bit_cast<std::uint32_t>(scale), scale, scale};
      }
      case Scaling::mx_ceil:
      case Scaling::mx_floor: {
        if (!std::isfinite(amax)) return {255, kNaN, kNaN};
        const bool up = of_.shape.scaling == Scaling::mx_ceil;
        int exponent = -127;
        if (up)
          while (std::ldexp(max, exponent) < amax) ++exponent;
        else if (amax > 0)
          exponent = std::max(-127, std::ilogb(amax) - std::ilogb(max));
        const float power = std::ldexp(1.0f, exponent);
        return {static_cast<std::uint32_t>(exponent + 127),
                up && exponent == -127 ? 1.0f : std::ldexp(1.0f, -exponent), power};
      }
      case Scaling::nv:
      case Scaling::nv_square: {
        constexpr float kMost = 0x1.fffffep127f;
        if (!std::isfinite(greatest_)) return {e4m3_.nan(), kNaN, kNaN};
        const float encode = std::min(2688.0f / greatest_, kMost);
        const std::uint32_t code = e4m3_.nearest(amax * (encode * (1.0f / 6.0f)));
        const auto number = static_cast<float>(e4m3_[static_cast<int>(code)]);
        return {code, std::min(1.0f / (number * (1.0f / encode)), kMost), number * (1.0f / encode)};
      }
      case Scaling::nv_torchao: {
        if (!std::isfinite(greatest_)) return {e4m3_.nan(), kNaN, kNaN};
        const float whole = greatest_ / 2688.0f, scale = whole == 0 ? 1.0f : whole;
        const float wanted = std::max(amax / 6.0f / scale, 0x1p-6f);
        const std::uint32_t code = e4m3_.nearest(wanted);
        const auto number = static_cast<float>(e4m3_[static_cast<int>(code)]);
        return {code, std::min(1.0f / scale / number, 0x1.fffffep127f), number * scale};
      }
    }
    return {};
  }

  std::uint32_t code_of_element(std::int64_t row, std::int64_t column, const Block& block) const {
    const float scaled = of_.value_at(row, column) * block.factor;
    const float signed_like = std::copysign(scaled, of_.value_at(row, column));
    if (!of_.shape.by_chance) return table_.nearest(signed_like);
    const std::int64_t width = (of_.shape.columns + 31) / 32 * 32;
    return table_.by_chance(signed_like, random_half(stream_of(q_.key), row * width + column));
  }

  float number_of_code(std::uint32_t code, const Block& block) const {
    const auto number = static_cast<float>(table_[static_cast<int>(code)]);
    return has_fp32_scales(of_.shape.scaling) ? number / block.number : number * block.number;
  }

 private:
  QuantizeCase& of_;
  Quantization q_;
  NarrowTable table_, e4m3_;
  float greatest_;
};

}  // namespace demi::kernels::testing
