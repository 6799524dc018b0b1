#include "demi/kernels/quantize.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "demi/kernels/cpu_kernels.h"
#include "demi/kernels/testing/kernels_here.h"
#include "demi/kernels/testing/quantize_case.h"

namespace demi::kernels {
namespace {

using testing::kernels_here;
using testing::kInfinity;
using testing::kNaN;
using testing::kNarrowFormats;
using testing::kScalings;
using ::testing::Message;
using testing::PlainQuantizer;
using testing::QuantizeCase;
using testing::QuantizeShape;

/// act(shape) for each scaling and direction of the format that it is made for.
template <class Act>
void each_kind(Act act) {
  for (const NarrowFormat format : kNarrowFormats)
    for (const Scaling scaling : kScalings)
      for (const bool down : {false, true})
        if (!is_nv(scaling) || format == NarrowFormat::e2m1)
          act(QuantizeShape{format, scaling, down, 0, 0});
}

std::string named(const QuantizeShape& s) {
  return (Message() << "format " << static_cast<int>(s.format) << " scaling "
                    << static_cast<int>(s.scaling) << (s.down ? " down " : " along ") << s.rows
                    << " x " << s.columns << " storage " << static_cast<int>(s.storage)
                    << (s.by_chance ? " by chance" : ""))
      .GetString();
}

bool is_same_number(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

void expect_the_plain_quantizers(QuantizeCase& one) {
  const PlainQuantizer plain(one);
  bool is_right = true;
  const auto hold = [&](bool holds, const char* what, std::int64_t at) {
    if (holds || !is_right) return;
    is_right = false;
    ADD_FAILURE() << named(one.shape) << ": " << what << " at " << at;
  };
  plain.each_block([&](std::int64_t k, auto first_row, auto end_row, auto first_column,
                       auto end_column) {
    std::uint32_t most = 0;
    for (auto r = first_row; r < end_row; ++r)
      for (auto c = first_column; c < end_column; ++c)
        most = std::max(most, std::bit_cast<std::uint32_t>(one.value_at(r, c)) & 0x7FFFFFFFu);
    const PlainQuantizer::Block block = plain.block_of_greatest(std::bit_cast<float>(most));
    std::uint32_t scale = 0;
    const auto bytes = static_cast<std::size_t>(one.scale_bytes());
    std::memcpy(&scale, one.scales.data() + static_cast<std::size_t>(k) * bytes, bytes);
    hold(scale == block.scale_bits ||
             (bytes == 4 && std::isnan(block.factor) && std::isnan(std::bit_cast<float>(scale))),
         "scale", k);
    for (auto r = first_row; r < end_row; ++r)
      for (auto c = first_column; c < end_column; ++c) {
        const std::int64_t at = r * one.shape.columns + c;
        const std::uint32_t code = one.code_at(r, c);
        hold(std::isnan(block.factor) || code == plain.code_of_element(r, c, block), "code", at);
        testing::StoredArray rounded(one.shape.storage, 1);
        rounded.set(0, plain.number_of_code(code, block));
        hold(is_same_number(one.to[at], rounded[0]), "number", at);
      }
  });
  hold(one.has_room_behind(), "the end", 0);
}

// Odd sizes, sizes of one strip and more, less than a block, more than one tile.
constexpr std::int64_t kSizes[][2] = {{1, 1},    {5, 7},     {33, 32},  {32, 48},
                                      {3, 515},  {70, 96},   {40, 1},   {67, 577},
                                      {2, 1056}, {130, 260}, {260, 33}, {3, 4130}};

TEST(Quantize, IsWhatTheDefinitionsSayOnEachPath) {
  each_kind([](QuantizeShape shape) {
    for (const auto& size : kSizes)
      for (const bool by_chance : {false, true}) {
        shape.rows = size[0], shape.columns = size[1], shape.by_chance = by_chance;
        for (const CpuKernels* kernels : kernels_here()) {
          QuantizeCase one(shape);
          one.run(*kernels);
          expect_the_plain_quantizers(one);
        }
      }
  });
}

TEST(Quantize, ReadsAndWrites16Bits) {
  each_kind([](QuantizeShape shape) {
    for (const Storage storage : {Storage::bf16, Storage::fp16}) {
      shape.rows = 35, shape.columns = 161, shape.storage = storage;
      for (const CpuKernels* kernels : kernels_here()) {
        QuantizeCase one(shape);
        one.run(*kernels);
        expect_the_plain_quantizers(one);
      }
    }
  });
}

TEST(Quantize, HasTheSameBitsHoweverPiecesAreShared) {
  each_kind([](QuantizeShape shape) {
    shape.rows = 300, shape.columns = 1100, shape.by_chance = true;
    for (const CpuKernels* kernels : kernels_here()) {
      QuantizeCase one(shape), all(shape);
      one.run(*kernels);  // one piece at a time, backwards
      all.greatest = one.greatest;
      kernels->quantize(all.described(), 0, pieces_of(all.described()));
      kernels->dequantize(all.described(), 0, pieces_of(all.described()));
      EXPECT_GT(pieces_of(all.described()), 1);
      EXPECT_TRUE(one.codes == all.codes && one.scales == all.scales && one.to == all.to)
          << named(shape);
      EXPECT_EQ(one.tensor_scale, all.tensor_scale);
    }
  });
}

// An overflow must not vanish in a saturated code.
TEST(Quantize, InfAndNanMakeTheirBlockNanAndNoOther) {
  each_kind([](QuantizeShape shape) {
    shape.rows = 67, shape.columns = 130;
    for (const float special : {kInfinity, -kInfinity, kNaN})
      for (const CpuKernels* kernels : kernels_here()) {
        QuantizeCase one(shape);
        const std::int64_t row = 40, column = 70;
        one.from.set(row * shape.columns + column, special);
        one.run(*kernels);
        expect_the_plain_quantizers(one);
        const std::int64_t block = block_of(shape.scaling);
        for (std::int64_t r = 0; r < shape.rows; ++r)
          for (std::int64_t c = 0; c < shape.columns; ++c) {
            bool shares = shape.down ? c == column : r == row;
            if (shares && block != 0)
              shares = shape.down ? r / block == row / block : c / block == column / block;
            if (is_square(shape.scaling))
              shares = r / block == row / block && c / block == column / block;
            if (needs_greatest_of_tensor(shape.scaling)) shares = true;
            ASSERT_EQ(std::isnan(one.to[r * shape.columns + c]), shares)
                << named(shape) << ' ' << r << ' ' << c;
          }
      }
  });
}

TEST(Quantize, FiniteNumbersSaturate) {
  for (const CpuKernels* kernels : kernels_here()) {
    QuantizeCase one({NarrowFormat::e4m3, Scaling::mx_floor, false, 1, 32});
    for (int i = 0; i < 32; ++i) one.from.set(i, i % 2 == 0 ? 500.0f : -511.0f);
    one.run(*kernels);
    EXPECT_EQ(one.scales[0], 127);  // 2^(8 - 8)
    for (int i = 0; i < 32; ++i) EXPECT_EQ(one.to[i], i % 2 == 0 ? 448.0f : -448.0f);
  }
}

TEST(Quantize, ZerosAndTheSmallestNumbersAreFinite) {
  each_kind([](QuantizeShape shape) {
    shape.rows = 33, shape.columns = 65;
    for (const float x : {0.0f, -0.0f, 0x1p-149f, 0x1p-126f, 1e-38f, 1e38f})
      for (const CpuKernels* kernels : kernels_here()) {
        QuantizeCase one(shape);
        for (std::int64_t i = 0; i < one.size(); ++i) one.from.set(i, x);
        one.run(*kernels);
        expect_the_plain_quantizers(one);
        for (std::int64_t i = 0; i < one.size(); ++i)
          ASSERT_TRUE(std::isfinite(one.to[i])) << named(shape) << ' ' << x;
      }
  });
}

TEST(Quantize, EmptyMatricesHaveNoPieces) {
  each_kind([](QuantizeShape shape) {
    for (const auto& size : {std::array{0, 0}, std::array{0, 5}, std::array{5, 0}}) {
      shape.rows = size[0], shape.columns = size[1];
      for (const CpuKernels* kernels : kernels_here()) {
        QuantizeCase one(shape);
        one.run(*kernels);
        EXPECT_TRUE(one.has_room_behind()) << named(shape);
      }
    }
  });
}

TEST(Quantize, OtherKeysRoundOtherwise) {
  QuantizeCase one({NarrowFormat::e2m1, Scaling::nv, false, 8, 256, Storage::fp32, true});
  one.run(*kernels_here().front());
  const std::vector<std::uint8_t> codes = one.codes;
  const RoundingKey keys[] = {{8, 3, 1, 5}, {7, 4, 1, 5}, {7, 3, 2, 5}, {7, 3, 1, 6}};
  for (const RoundingKey& key : keys) {
    Quantization q = one.described();
    q.key = key;
    kernels_here().front()->quantize(q, 0, pieces_of(q));
    EXPECT_NE(one.codes, codes);
  }
}

// The mean of many roundings is the number.
TEST(Quantize, ByChanceKeepsTheMean) {
  QuantizeCase one({NarrowFormat::e2m1, Scaling::mx_ceil, false, 400, 512, Storage::fp32, true});
  for (std::int64_t i = 0; i < one.size(); ++i) one.from.set(i, i % 32 == 0 ? 6.0f : 2.3f);
  one.run(*kernels_here().back());
  double sum = 0, count = 0;
  for (std::int64_t i = 0; i < one.size(); ++i)
    if (i % 32 != 0) sum += one.to[i], ++count;
  EXPECT_NEAR(sum / count, 2.3, 4 * 0.46 / std::sqrt(count));  // 0.46: the standard deviation
}

}  // namespace
}  // namespace demi::kernels
