#include "demi/kernels/product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "demi/core/number.h"
#include "demi/kernels/cpu_kernels.h"
#include "demi/kernels/testing/kernels_here.h"

namespace demi::kernels {
namespace {

using std::int64_t;
using Halves = std::vector<std::uint16_t>;
using testing::kernels_here;

float fp32_of_half(Storage storage, std::uint16_t bits) {
  return storage == Storage::bf16 ? fp32_from_bf16(bits) : fp32_from_fp16(bits);
}

std::uint16_t half_of_fp32(Storage storage, float value) {
  return storage == Storage::bf16 ? bf16_from_fp32(value) : fp16_from_fp32(value);
}

Halves random_halves_of(Storage storage, int64_t n, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<float> uniform(-2, 2);
  Halves bits(static_cast<std::size_t>(n));
  for (std::uint16_t& one : bits) one = half_of_fp32(storage, uniform(generator));
  return bits;
}

enum class AddendKind { none, matrix, row, column, transposed };

/// A product with operands of its own.
struct ProductCase {
  int64_t m, k, n;
  Storage storage = Storage::bf16;
  bool a_is_transposed = false, b_is_transposed = false;
  AddendKind addend = AddendKind::none;
  float beta = 1, alpha = 1;

  Halves a, b;
  std::vector<float> added;

  void fill() {
    a = random_halves_of(storage, m * k, 1);
    b = random_halves_of(storage, k * n, 2);
    const Halves of_added = random_halves_of(storage, m * n, 3);
    for (const std::uint16_t bits : of_added) added.push_back(fp32_of_half(storage, bits));
  }

  Product product() const {
    Product p{.storage = storage,
              .result = storage,
              .m = m,
              .k = k,
              .n = n,
              .a = a.data(),
              .a_row = a_is_transposed ? 1 : k,
              .a_column = a_is_transposed ? m : 1,
              .b = b.data(),
              .b_row = b_is_transposed ? 1 : n,
              .b_column = b_is_transposed ? k : 1,
              .c = nullptr,
              .c_row = n,
              .beta = beta,
              .alpha = alpha};
    if (addend == AddendKind::none) return p;
    p.addend = added.data();
    p.addend_row = addend == AddendKind::row ? 0 : addend == AddendKind::column ? 1 : n;
    p.addend_column = addend == AddendKind::column ? 0 : 1;
    if (addend == AddendKind::transposed) {
      p.addend_row = 1;
      p.addend_column = m;
    }
    return p;
  }

  std::string name() const {
    return std::to_string(m) + " x " + std::to_string(k) + " by " + std::to_string(n) +
           (storage == Storage::bf16 ? " bf16" : " fp16") + (a_is_transposed ? " a'" : "") +
           (b_is_transposed ? " b'" : "") + " addend " + std::to_string(static_cast<int>(addend));
  }
};

constexpr std::uint16_t kBehindProduct = 0x1234;

/// The result, in rows that are `gap` longer, with what lies between and behind them.
Halves product_by(const CpuKernels& kernels, Product p, int64_t gap = 0) {
  Halves c(static_cast<std::size_t>(p.m * (p.n + gap) + 64), kBehindProduct);
  std::vector<float> work(static_cast<std::size_t>(work_size(p.m, p.k, p.n)),
                          std::numeric_limits<float>::quiet_NaN());
  p.work = work.data();
  p.c = c.data();
  p.c_row = p.n + gap;
  kernels.multiply(p);
  return c;
}

/// Each of k fused multiply-adds, the sums of the chains and the addend's round once to FP32, and
/// the result once to 16 bits.
void expect_product_near_fp64(const ProductCase& one, const Halves& c) {
  const Product p = one.product();
  const double half_ulp = one.storage == Storage::bf16 ? 0x1p-8 : 0x1p-11;
  for (int64_t i = 0; i < p.m; ++i)
    for (int64_t j = 0; j < p.n; ++j) {
      double sum = 0, magnitude = 0;
      for (int64_t l = 0; l < p.k; ++l) {
        const double term =
            double{fp32_of_half(one.storage, one.a[size_t(i * p.a_row + l * p.a_column)])} *
            double{fp32_of_half(one.storage, one.b[size_t(l * p.b_row + j * p.b_column)])};
        sum += term;
        magnitude += std::abs(term);
      }
      sum *= p.alpha;
      magnitude *= std::abs(p.alpha);
      if (p.addend) {
        const double term = p.beta * p.addend[i * p.addend_row + j * p.addend_column];
        sum += term;
        magnitude += std::abs(term);
      }
      ASSERT_NEAR(
          fp32_of_half(one.storage, c[size_t(i * p.n + j)]), sum,
          std::abs(sum) * half_ulp * 1.01 + magnitude * static_cast<double>(p.k + 4) * 0x1p-24)
          << one.name() << " at " << i << ", " << j;
    }
}

// Sizes around a tile's rows (6, 14), a vector's and a tile's columns (8, 16, 32) and a chain
// (256).
TEST(Product, IsThatOfFp64AndHasTheSameBitsOnEachPath) {
  for (const Storage storage : {Storage::bf16, Storage::fp16})
    for (const int form : {0, 1, 2, 3})
      for (const int64_t m : {1, 5, 6, 7, 14, 29})
        for (const int64_t k : {1, 7, 16, 40, 256, 257, 530})
          for (const int64_t n : {1, 8, 15, 33, 70}) {
            ProductCase one{.m = m, .k = k, .n = n, .storage = storage};
            one.a_is_transposed = form % 2 != 0;
            one.b_is_transposed = form / 2 != 0;
            one.fill();
            Halves first;
            for (const CpuKernels* kernels : kernels_here()) {
              const Halves c = product_by(*kernels, one.product());
              for (std::size_t i = static_cast<std::size_t>(m * n); i < c.size(); ++i)
                ASSERT_EQ(c[i], kBehindProduct) << "written behind the result: " << one.name();
              if (first.empty()) {
                expect_product_near_fp64(one, c);
                first = c;
              }
              ASSERT_EQ(c, first) << name_of(kernels->path) << ": " << one.name();
            }
          }
}

TEST(Product, AddsMatricesOfAnyStridesRowsAndColumns) {
  for (const AddendKind addend :
       {AddendKind::matrix, AddendKind::row, AddendKind::column, AddendKind::transposed})
    for (const int64_t k : {40, 300}) {
      ProductCase one{.m = 17, .k = k, .n = 45, .addend = addend, .beta = 0.5F, .alpha = -1.25F};
      one.fill();
      Halves first;
      for (const CpuKernels* kernels : kernels_here()) {
        const Halves c = product_by(*kernels, one.product());
        expect_product_near_fp64(one, c);
        if (first.empty()) first = c;
        ASSERT_EQ(c, first) << name_of(kernels->path) << ": " << one.name();
      }
    }
}

TEST(Product, WritesSumsInFp32) {
  ProductCase one{.m = 15, .k = 300, .n = 37, .storage = Storage::fp16};
  one.fill();
  std::vector<float> first;
  for (const CpuKernels* kernels : kernels_here()) {
    Product p = one.product();
    p.result = Storage::fp32;
    std::vector<float> sums(static_cast<std::size_t>(p.m * p.n)),
        work(static_cast<std::size_t>(work_size(p.m, p.k, p.n)));
    p.c = sums.data();
    p.work = work.data();
    kernels->multiply(p);
    const Halves rounded = product_by(*kernels, one.product());
    for (std::size_t i = 0; i < sums.size(); ++i)
      ASSERT_EQ(half_of_fp32(Storage::fp16, sums[i]), rounded[i]) << i;
    if (first.empty()) first = sums;
    ASSERT_EQ(sums, first) << name_of(kernels->path);
  }
}

// The bound: each of k fused multiply-adds, the sums of the chains and the addend's round once.
TEST(Product, OfFp32IsThatOfFp64AndHasTheSameBitsOnEachPath) {
  const int64_t m = 29, n = 45;
  for (const bool transposed : {false, true})
    for (const int64_t k : {7, 40, 300}) {
      std::mt19937 generator(1);
      std::uniform_real_distribution<float> uniform(-2, 2);
      const auto random = [&](int64_t size) {
        std::vector<float> all(static_cast<std::size_t>(size));
        for (float& one : all) one = uniform(generator);
        return all;
      };
      const std::vector<float> a = random(m * k), b = random(k * n), added = random(m * n);
      Product p{.storage = Storage::fp32,
                .result = Storage::fp32,
                .m = m,
                .k = k,
                .n = n,
                .a = a.data(),
                .a_row = transposed ? 1 : k,
                .a_column = transposed ? m : 1,
                .b = b.data(),
                .b_row = transposed ? 1 : n,
                .b_column = transposed ? k : 1,
                .c = nullptr,
                .c_row = n,
                .addend = added.data(),
                .addend_row = n,
                .addend_column = 1,
                .beta = -0.5F,
                .alpha = 1.5F};
      std::vector<float> first;
      for (const CpuKernels* kernels : kernels_here()) {
        std::vector<float> c(added.size()), work(static_cast<std::size_t>(work_size(m, k, n)));
        p.c = c.data();
        p.work = work.data();
        kernels->multiply(p);
        if (first.empty()) first = c;
        ASSERT_EQ(c, first) << name_of(kernels->path) << ", k " << k;
      }
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {
          double sum = 0, magnitude = 0;
          for (int64_t l = 0; l < k; ++l) {
            const double term = 1.5 * double{a[size_t(i * p.a_row + l * p.a_column)]} *
                                double{b[size_t(l * p.b_row + j * p.b_column)]};
            sum += term;
            magnitude += std::abs(term);
          }
          const double added_here = -0.5 * double{added[size_t(i * n + j)]};
          ASSERT_NEAR(first[size_t(i * n + j)], sum + added_here,
                      (magnitude + std::abs(added_here)) * static_cast<double>(k + 4) * 0x1p-24)
              << "k " << k << " at " << i << ", " << j;
        }
    }
}

// Parts of a result, whose rows are longer, computed apart.
TEST(Product, OfPartsHasTheBitsOfTheWhole) {
  ProductCase one{.m = 31, .k = 520, .n = 77};
  one.fill();
  for (const CpuKernels* kernels : kernels_here()) {
    const Halves whole = product_by(*kernels, one.product());
    for (const int64_t row : {3, 14})
      for (const int64_t column : {5, 32}) {
        Product part = one.product();
        part.m -= row;
        part.n -= column;
        part.a = one.a.data() + row * part.a_row;
        part.b = one.b.data() + column * part.b_column;
        const Halves c = product_by(*kernels, part, /*gap=*/3);
        for (int64_t i = 0; i < part.m; ++i)
          for (int64_t j = 0; j < part.n + 3; ++j)
            ASSERT_EQ(c[size_t(i * (part.n + 3) + j)],
                      j < part.n ? whole[size_t((i + row) * 77 + j + column)] : kBehindProduct)
                << i << ", " << j;
      }
  }
}

TEST(Product, KeepsInfinityAndNaNToTheirRowsAndColumns) {
  for (const bool transposed : {false, true}) {
    ProductCase one{.m = 15, .k = 21, .n = 35};
    one.a_is_transposed = one.b_is_transposed = transposed;
    one.fill();
    const Product p = one.product();
    one.a[size_t(4 * p.a_row + 20 * p.a_column)] =
        bf16_from_fp32(std::numeric_limits<float>::infinity());
    one.b[size_t(20 * p.b_row + 34 * p.b_column)] =
        bf16_from_fp32(std::numeric_limits<float>::quiet_NaN());
    for (const CpuKernels* kernels : kernels_here()) {
      const Halves c = product_by(*kernels, one.product());
      for (int64_t i = 0; i < p.m; ++i)
        for (int64_t j = 0; j < p.n; ++j) {
          const float value = fp32_from_bf16(c[size_t(i * p.n + j)]);
          ASSERT_EQ(std::isfinite(value), i != 4 && j != 34) << i << ", " << j;
          ASSERT_EQ(std::isnan(value), j == 34) << i;
        }
    }
  }
}

}  // namespace
}  // namespace demi::kernels
