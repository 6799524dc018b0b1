#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "demi/kernels/cpu/memory.h"
#include "demi/kernels/product.h"

// Products of matrices. 16-bit numbers are widened while they are packed into panels, as any fast
// product packs them, and rounded when a tile leaves its registers: the conversions to FP32 have no
// pass over memory of their own. (The form of tiles and panels: Goto and van de Geijn, "Anatomy of
// high-performance matrix multiplication", 2008.) Internal linkage.
namespace demi::kernels {
namespace {

// A tile's sums fill the registers but for two vectors of b and one number of a: 28 of 32, or 12 of
// 16.
constexpr int kProductRows = Vector::width == 16 ? 14 : 6;
constexpr int kProductColumns = 2 * Vector::width;
// A panel of a has so many numbers from one l to the next.
constexpr int kRowsApart = Vector::width;

/// f(0), f(1), ..., f(N - 1), each known to the compiler.
template <int N, class F>
[[gnu::always_inline]] inline void unrolled(F f) {
  [&]<std::size_t... i>(std::index_sequence<i...>) { (f(static_cast<int>(i)), ...); }
  (std::make_index_sequence<N>());
}

/// Reads `lines` runs of `length` numbers, each at most a vector's width; writes number j of all
/// runs next to each other to to[j to_stride], 0 for absent runs.
template <Storage storage>
void widen_transposed(float* to, std::int64_t to_stride, const void* from, std::int64_t at,
                      std::int64_t stride, int lines, int length) {
  Vector block[Vector::width];
  for (int i = 0; i < Vector::width; ++i) {
    if (i >= lines)
      block[i] = Vector(0.0f);
    else if (length == Vector::width)
      block[i] = load_elements<storage>(from, at + i * stride);
    else
      block[i] = load_elements<storage>(from, at + i * stride, length);
  }
  transpose(block);
  for (int j = 0; j < length; ++j) store(to + j * to_stride, block[j]);
}

/// A panel of numbers [l][`width` of the side], 0 behind the side's end: `count` lines of the side,
/// `side` apart, and k numbers of each, `along` apart. One of these is 1. `width`: whole vectors.
template <Storage storage>
void pack_panel(float* to, int width, const void* from, std::int64_t at, std::int64_t side,
                std::int64_t along, std::int64_t count, std::int64_t k) {
  const auto lines_from = [count](int v) {
    return static_cast<int>(std::clamp<std::int64_t>(count - v, 0, Vector::width));
  };
  if (side == 1) {
    for (std::int64_t l = 0; l < k; ++l)
      for (int v = 0; v < width; v += Vector::width) {
        const std::int64_t here = at + v + l * along;
        const int lines = lines_from(v);
        store(to + l * width + v, lines == Vector::width
                                      ? load_elements<storage>(from, here)
                                      : load_elements<storage>(from, here, lines));
      }
    return;
  }
  for (std::int64_t l = 0; l < k; l += Vector::width)
    for (int v = 0; v < width; v += Vector::width)
      widen_transposed<storage>(to + l * width + v, width, from, at + v * side + l, side,
                                lines_from(v),
                                static_cast<int>(std::min<std::int64_t>(k - l, Vector::width)));
}

/// The sums of a tile, row after row: those of a panel of a by a panel of b, of k numbers each,
/// added to what is there unless they are the first.
template <int Rows, bool is_first>
void multiply_panels(float* sums, const float* a, const float* b, std::int64_t k) {
  Vector left[Rows], right[Rows];
  unrolled<Rows>([&](int r) { left[r] = right[r] = Vector(0.0f); });
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC unroll 4
#endif
  for (std::int64_t l = 0; l < k; ++l) {
    const Vector b0 = load(b), b1 = load(b + Vector::width);
    prefetch<Storage::fp32>(b, 8 * kProductColumns);
    prefetch<Storage::fp32>(b, 8 * kProductColumns + Vector::width);
    unrolled<Rows>([&](int r) {
      const Vector number(a[r]);
      left[r] = multiply_add(number, b0, left[r]);
      right[r] = multiply_add(number, b1, right[r]);
    });
    a += kRowsApart;
    b += kProductColumns;
  }
  unrolled<Rows>([&](int r) {
    float *const to = sums + r * kProductColumns, *const to_right = to + Vector::width;
    store(to, is_first ? left[r] : load(to) + left[r]);
    store(to_right, is_first ? right[r] : load(to_right) + right[r]);
  });
}

template <bool is_first, std::size_t... i>
constexpr auto panels_by_rows(std::index_sequence<i...>) {
  return std::array{&multiply_panels<static_cast<int>(i) + 1, is_first>...};
}

inline Vector addend_of(const Product& p, std::int64_t row, std::int64_t column, int n) {
  const float* const at = p.addend + row * p.addend_row + column * p.addend_column;
  if (p.addend_column == 0) return Vector(*at);
  if (p.addend_column == 1) return n == Vector::width ? load(at) : load(at, n);
  float gathered[Vector::width] = {};
  for (int i = 0; i < n; ++i) gathered[i] = at[i * p.addend_column];
  return load(gathered);
}

/// c = beta addend + alpha sums, rounded, for a tile of so many rows and columns.
inline void write_tile(const Product& p, const float* sums, std::int64_t row, std::int64_t column,
                       std::int64_t rows, std::int64_t columns) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t j = 0; j < columns; j += Vector::width) {
      const auto n = static_cast<int>(std::min<std::int64_t>(Vector::width, columns - j));
      Vector value = Vector(p.alpha) * load(sums + r * kProductColumns + j);
      if (p.addend) value = value + Vector(p.beta) * addend_of(p, row + r, column + j, n);
      const std::int64_t at = (row + r) * p.c_row + column + j;
      if (n == Vector::width)
        store_elements(p.c, p.result, at, value);
      else
        store_elements(p.c, p.result, at, value, n);
    }
}

template <Storage storage>
void multiply_by_panels(const Product& p) {
  static constexpr auto kFirst = panels_by_rows<true>(std::make_index_sequence<kProductRows>()),
                        kNext = panels_by_rows<false>(std::make_index_sequence<kProductRows>());
  const std::int64_t panels = (p.n + kProductColumns - 1) / kProductColumns;
  const std::int64_t panel_size = kProductColumns * std::min(p.k, kChain);
  float* const all_sums = p.work + panels * panel_size;
  alignas(64) float rows[kChain * kRowsApart], tile[kProductRows * kProductColumns];
  for (std::int64_t first = 0; first < p.k; first += kChain) {
    const std::int64_t k = std::min(kChain, p.k - first);
    for (std::int64_t q = 0; q < panels; ++q)
      pack_panel<storage>(p.work + q * panel_size, kProductColumns, p.b,
                          first * p.b_row + q * kProductColumns * p.b_column, p.b_column, p.b_row,
                          p.n - q * kProductColumns, k);
    for (std::int64_t row = 0; row < p.m; row += kProductRows) {
      const std::int64_t height = std::min<std::int64_t>(kProductRows, p.m - row);
      pack_panel<storage>(rows, kRowsApart, p.a, row * p.a_row + first * p.a_column, p.a_row,
                          p.a_column, height, k);
      for (std::int64_t q = 0; q < panels; ++q) {
        float* const sums =
            p.k <= kChain ? tile : all_sums + (row * panels + q * height) * kProductColumns;
        (first == 0 ? kFirst : kNext)[static_cast<std::size_t>(height - 1)](
            sums, rows, p.work + q * panel_size, k);
        if (first + kChain >= p.k)
          write_tile(p, sums, row, q * kProductColumns, height,
                     std::min<std::int64_t>(kProductColumns, p.n - q * kProductColumns));
      }
    }
  }
}

inline void multiply_matrices(const Product& p) {
  if (p.storage == Storage::bf16)
    multiply_by_panels<Storage::bf16>(p);
  else if (p.storage == Storage::fp16)
    multiply_by_panels<Storage::fp16>(p);
  else
    multiply_by_panels<Storage::fp32>(p);
}

}  // namespace
}  // namespace demi::kernels
