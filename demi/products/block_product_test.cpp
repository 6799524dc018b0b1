#include "demi/products/block_product.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace demi::products {
namespace {

constexpr std::int64_t kRows = 3, kInner = 4, kColumns = 96, kWidth = 64;  // panels of 64 and 32

int a_at(std::int64_t row, std::int64_t inner) {
  return static_cast<int>((row * kInner + inner) % 7 - 3);
}
int b_at(std::int64_t inner, std::int64_t column) {
  return static_cast<int>((inner * kColumns + column) % 11 - 5);
}

template <class Number>
std::vector<Number> a_in_rows() {
  std::vector<Number> a;
  for (std::int64_t i = 0; i < kRows * kInner; ++i)
    a.push_back(static_cast<float>(a_at(i / kInner, i % kInner)));
  return a;
}

// As Panels says: rows one after the other, or two of them column by column.
template <class Number>
std::vector<Number> b_in_panels(bool in_pairs) {
  std::vector<Number> b(kInner * kColumns);
  for (std::int64_t inner = 0; inner < kInner; ++inner)
    for (std::int64_t j = 0; j < kColumns; ++j) {
      const std::int64_t first = j / kWidth * kWidth, column = j - first,
                         width = std::min(kWidth, kColumns - first);
      const std::int64_t place =
          in_pairs ? inner / 2 * 2 * width + 2 * column + inner % 2 : inner * width + column;
      b[static_cast<std::size_t>(first * kInner + place)] = static_cast<float>(b_at(inner, j));
    }
  return b;
}

// Small whole numbers: every sum is exact in any order.
template <class Number>
void expect_product(bool in_pairs) {
  constexpr std::int64_t kStride = kColumns + kWidth;
  constexpr float kUntouched = 1000;
  const std::vector<Number> a = a_in_rows<Number>(), b = b_in_panels<Number>(in_pairs);
  std::vector<float> c(kRows * kStride, kUntouched);
  multiply(a.data(), kInner, {b.data(), kInner, kWidth}, c.data(), kStride, kRows, kInner, kColumns,
           /*add=*/false);
  release_block_products();
  for (std::int64_t row = 0; row < kRows; ++row)
    for (std::int64_t column = 0; column < kStride; ++column) {
      int sum = 0;
      for (std::int64_t inner = 0; inner < kInner && column < kColumns; ++inner)
        sum += a_at(row, inner) * b_at(inner, column);
      EXPECT_EQ(c[static_cast<std::size_t>(row * kStride + column)],
                column < kColumns ? static_cast<float>(sum) : kUntouched)
          << "row " << row << ", column " << column;
    }
}

TEST(BlockProduct, EndsWithANarrowPanel) {
  if (has_fp32_block_products()) expect_product<float>(/*in_pairs=*/false);
  if (multiplies_bf16_blocks()) expect_product<c10::BFloat16>(/*in_pairs=*/true);
}

}  // namespace
}  // namespace demi::products
