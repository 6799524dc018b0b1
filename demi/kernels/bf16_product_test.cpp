#include "demi/kernels/bf16_product.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "demi/core/instruction_set.h"
#include "demi/core/number.h"

namespace demi::kernels {
namespace {

using std::int64_t;

struct Matrix {
  int64_t columns;
  std::vector<std::uint16_t> bits;

  // Values of which bf16 holds each exactly.
  Matrix(int64_t rows, int64_t width, unsigned seed) : columns(width) {
    for (int64_t i = 0; i < rows * width; ++i) {
      seed = seed * 1664525u + 1013904223u;
      bits.push_back(
          bf16_from_fp32(static_cast<float>(static_cast<int>(seed >> 20) - 2048) / 1024));
    }
  }
  double operator()(int64_t i, int64_t j) const {
    return fp32_from_bf16(bits[static_cast<std::size_t>(i * columns + j)]);
  }
};

/// c = a b against sums in FP64: each of k products and sums errs by at most one rounding of FP32.
void expect_product(const Bf16Product& product, int64_t rows, int64_t k, int64_t n, bool transposed,
                    bool add) {
  SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(k) + " by " + std::to_string(n) +
               (transposed ? " transposed" : "") + (add ? " added" : ""));
  const Matrix a(rows, k, 1), b = transposed ? Matrix(n, k, 2) : Matrix(k, n, 2);
  std::vector<std::uint16_t> packed(static_cast<std::size_t>(Bf16Product::packed_size(k, n)),
                                    0x7FC0);
  product.pack(packed.data(), b.bits.data(), k, n, transposed ? 1 : n, transposed ? k : 1);
  constexpr float kBefore = 0.75f, kBeyond = 123;
  std::vector<float> c(static_cast<std::size_t>(rows * n), kBefore);
  c.insert(c.end(), 64, kBeyond);
  product.multiply(a.bits.data(), k, packed.data(), k, c.data(), n, rows, k, n, add);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = add ? kBefore : 0, magnitude = sum;
      for (int64_t l = 0; l < k; ++l) {
        const double term = a(i, l) * (transposed ? b(j, l) : b(l, j));
        sum += term;
        magnitude += std::abs(term);
      }
      const float seen = c[static_cast<std::size_t>(i * n + j)];
      ASSERT_NEAR(seen, sum, magnitude * static_cast<double>(k + 1) * 0x1p-24)
          << "at " << i << ", " << j;
    }
  }
  for (std::size_t i = static_cast<std::size_t>(rows * n); i < c.size(); ++i)
    ASSERT_EQ(c[i], kBeyond) << "written behind the result";
}

TEST(Bf16Product, IsTheProductForAllSizes) {
  const Bf16Product* const product = bf16_product();
  if (!product) GTEST_SKIP() << "no AVX512_BF16";
  for (const int64_t rows : {1, 3, 4, 9})
    for (const int64_t k : {1, 2, 7, 64})
      for (const int64_t n : {1, 15, 16, 17, 40, 64, 65, 100, 128})
        for (const bool transposed : {false, true})
          for (const bool add : {false, true})
            expect_product(*product, rows, k, n, transposed, add);
}

// The first 6 of 9 rows of b, and parts of a and c whose rows are longer; two panels.
TEST(Bf16Product, TakesPartsOfMatrices) {
  const Bf16Product* const product = bf16_product();
  if (!product) GTEST_SKIP() << "no AVX512_BF16";
  constexpr int64_t kRowsHere = 5, kAll = 9, kInner = 6, kColumns = 70, kLine = 80;
  const Matrix a(kRowsHere, kAll, 1), b(kAll, kColumns, 2);
  std::vector<std::uint16_t> packed(
      static_cast<std::size_t>(Bf16Product::packed_size(kAll, kColumns)));
  product->pack(packed.data(), b.bits.data(), kAll, kColumns, kColumns, 1);
  std::vector<float> c(kRowsHere * kLine, 1);
  product->multiply(a.bits.data(), kAll, packed.data(), kAll, c.data(), kLine, kRowsHere, kInner,
                    kColumns, false);
  for (int64_t i = 0; i < kRowsHere; ++i)
    for (int64_t j = 0; j < kLine; ++j) {
      double sum = j < kColumns ? 0 : 1;
      for (int64_t l = 0; j < kColumns && l < kInner; ++l) sum += a(i, l) * b(l, j);
      EXPECT_NEAR(c[static_cast<std::size_t>(i * kLine + j)], sum, 1e-5) << i << ", " << j;
    }
}

TEST(Bf16Product, KeepsInfinityAndNaNToTheirRowsAndColumns) {
  const Bf16Product* const product = bf16_product();
  if (!product) GTEST_SKIP() << "no AVX512_BF16";
  constexpr int64_t kRowsHere = 3, kInner = 5, kColumns = 20;  // an odd k, and columns that pad
  Matrix a(kRowsHere, kInner, 1), b(kInner, kColumns, 2);
  a.bits[1 * kInner + 0] =
      bf16_from_fp32(std::numeric_limits<float>::infinity());  // behind row 0's last k
  std::vector<std::uint16_t> packed(
      static_cast<std::size_t>(Bf16Product::packed_size(kInner, kColumns)));
  product->pack(packed.data(), b.bits.data(), kInner, kColumns, kColumns, 1);
  std::vector<float> c(kRowsHere * kColumns);
  product->multiply(a.bits.data(), kInner, packed.data(), kInner, c.data(), kColumns, kRowsHere,
                    kInner, kColumns, false);
  for (int64_t i = 0; i < kRowsHere; ++i)
    for (int64_t j = 0; j < kColumns; ++j)
      EXPECT_EQ(std::isfinite(c[static_cast<std::size_t>(i * kColumns + j)]), i != 1)
          << i << ", " << j;
}

TEST(Bf16Product, IsThereIfTheProcessorHasTheInstructionsAndNobodyAskedForAnOlderPath) {
  const char* const before = std::getenv("DEMI_KERNELS");
  const std::optional<std::string> kept =
      before ? std::optional<std::string>(before) : std::nullopt;
  unsetenv("DEMI_KERNELS");
  if (!instruction_set().avx512_bf16) {
    EXPECT_EQ(bf16_product(), nullptr);
  }
  setenv("DEMI_KERNELS", "reference", 1);
  EXPECT_EQ(bf16_product(), nullptr);
  if (kept)
    setenv("DEMI_KERNELS", kept->c_str(), 1);
  else
    unsetenv("DEMI_KERNELS");
}

}  // namespace
}  // namespace demi::kernels
