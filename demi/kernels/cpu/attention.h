#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "demi/kernels/attention.h"
#include "demi/kernels/cpu/arrays.h"
#include "demi/kernels/lstm_formulas.h"

// AttentionKernels with AVX-512: TDPBF16PS comes with it. Internal linkage.
namespace demi::kernels {
namespace {

using std::int64_t, std::uint16_t, std::uint32_t;

constexpr int64_t kPanel = 64, kPairs = 16;

/// work(first column of a panel, its width).
template <class Work>
void each_panel(int64_t padded_columns, Work work) {
  for (int64_t first = 0; first < padded_columns; first += kPanel)
    work(first, std::min(kPanel, padded_columns - first));
}

/// Sixteen columns of two rows side by side.
inline void store_pairs(uint16_t* to, __m512i even, __m512i odd) {
  _mm512_storeu_si512(to, _mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
}

void pack_panels(uint16_t* to, const uint16_t* from, int64_t rows, int64_t columns,
                 int64_t row_stride, int64_t padded_rows, int64_t padded_columns) {
  const auto words = [&](int64_t i, int64_t j) {
    const int64_t n = i < rows ? std::clamp<int64_t>(columns - j, 0, kPairs) : 0;
    return n > 0 ? _mm512_cvtepu16_epi32(load_half(from + i * row_stride + j, static_cast<int>(n)))
                 : _mm512_setzero_si512();
  };
  each_panel(padded_columns, [&](int64_t first, int64_t width) {
    for (int64_t i = 0; i < padded_rows; i += 2)
      for (int64_t j = first; j < first + width; j += kPairs, to += 2 * kPairs)
        store_pairs(to, words(i, j), words(i + 1, j));
  });
}

/// Sixteen vectors as the columns of sixteen.
inline void transpose(__m512i (&r)[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; ++j) {
      r[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + j + 2]);
      r[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + j + 2]);
    }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

/// Pairs are elements of 32 bits: `pairs` of them in each of `columns` rows of `from`.
void pack_transpose_panels(uint16_t* to, const uint16_t* from, int64_t rows, int64_t columns,
                           int64_t row_stride, int64_t padded_columns) {
  const int64_t pairs = rows / 2;
  each_panel(padded_columns, [&](int64_t first, int64_t width) {
    for (int64_t j = 0; j < width; j += kPairs)
      for (int64_t i = 0; i < pairs; i += kPairs) {
        const int some = static_cast<int>(std::min(pairs - i, kPairs));
        __m512i block[16];
        for (int64_t c = 0; c < kPairs; ++c) {
          const int64_t column = first + j + c;
          block[c] = column < columns ? _mm512_maskz_loadu_epi32(demi::kernels::first(some),
                                                                 from + column * row_stride + 2 * i)
                                      : _mm512_setzero_si512();
        }
        transpose(block);
        for (int p = 0; p < some; ++p)
          _mm512_storeu_si512(to + 2 * ((i + p) * width + j), block[p]);
      }
    to += 2 * pairs * width;
  });
}

void copy_rows(uint16_t* to, const uint16_t* from, int64_t rows, int64_t columns,
               int64_t row_stride, int64_t padded_rows) {
  for (int64_t i = 0; i < rows; ++i)
    std::memcpy(to + i * columns, from + i * row_stride, 2 * static_cast<std::size_t>(columns));
  std::memset(to + rows * columns, 0, 2 * static_cast<std::size_t>((padded_rows - rows) * columns));
}

void transpose_rows(uint16_t* to, const uint16_t* from, int64_t rows, int64_t columns,
                    int64_t row_stride, int64_t padded_rows) {
  for (int64_t j = 0; j < columns; j += kPairs)
    for (int64_t i = 0; i < padded_rows; i += kPairs) {
      const int some = static_cast<int>(std::min(columns - j, kPairs));
      __m512i block[16];
      for (int64_t r = 0; r < kPairs; ++r)
        block[r] = i + r < rows
                       ? _mm512_cvtepu16_epi32(load_half(from + (i + r) * row_stride + j, some))
                       : _mm512_setzero_si512();
      transpose(block);
      for (int c = 0; c < some; ++c)
        store_half(to + (j + c) * padded_rows + i, _mm512_cvtepi32_epi16(block[c]));
    }
}

inline int64_t seen_by(int64_t query, const Visible& of) {
  return of.causal ? std::min(of.keys, of.seen + query) : of.keys;
}

/// The lanes whose score is not -Inf.
inline __mmask16 is_seen(Vector score) {
  return _mm512_cmp_ps_mask(score.v, _mm512_set1_ps(-INFINITY), _CMP_NEQ_UQ);
}

/// work(scores of keys j and after, j, lanes) for each vector of the keys that a query sees.
template <class Work>
void each_score(const float* sums, int64_t query, float scale, const Visible& visible, Work work) {
  const Vector factor(scale);
  const float* mask = visible.mask ? visible.mask + query * visible.mask_query_stride : nullptr;
  for_each_vector(seen_by(query, visible), [&](int64_t j, auto... some) {
    Vector score = load(sums + j, some...) * factor;
    if (mask) score = score + (visible.mask_key_stride ? load(mask + j, some...) : Vector(*mask));
    __mmask16 lanes = is_seen(score);
    if constexpr (sizeof...(some) != 0) lanes &= first(some...);
    work(score, j, lanes);
  });
}

void softmax_rows(uint16_t* weights, float* total, float* log_sum_exp, const float* sums,
                  int64_t stride, float scale, const Visible& visible) {
  for (int64_t i = 0; i < visible.queries; ++i) {
    const float* row = sums + i * stride;
    uint16_t* to = weights + i * stride;
    Vector largest(-INFINITY), sum(0.0f);
    each_score(row, i, scale, visible, [&](Vector score, int64_t, __mmask16 lanes) {
      largest.v = _mm512_mask_max_ps(largest.v, lanes, largest.v, score.v);
    });
    const float most = _mm512_reduce_max_ps(largest.v);
    each_score(row, i, scale, visible, [&](Vector score, int64_t j, __mmask16 lanes) {
      const Vector weight(_mm512_maskz_mov_ps(lanes, exponential(score - Vector(most)).v));
      sum = sum + weight;
      store_half(to + j, to_bf16(weight));
    });
    const int64_t end = (seen_by(i, visible) + Vector::width - 1) / Vector::width * Vector::width;
    if (end < stride) std::memset(to + end, 0, 2 * static_cast<std::size_t>(stride - end));
    total[i] = _mm512_reduce_add_ps(sum.v);
    if (total[i] == 0) total[i] = 1;
    log_sum_exp[i] = most + std::log(total[i]);
  }
}

void divide_rows(uint16_t* to, int64_t row_stride, const float* from, int64_t stride, int64_t rows,
                 int64_t columns, const float* divisor) {
  for (int64_t i = 0; i < rows; ++i) {
    const Vector by(divisor ? divisor[i] : 1.0f);
    for_each_vector(columns, [&](int64_t j, auto... some) {
      store_half(to + i * row_stride + j, to_bf16(load(from + i * stride + j, some...) / by),
                 some...);
    });
  }
}

void dot_rows(float* to, const uint16_t* a, int64_t a_stride, const uint16_t* b, int64_t b_stride,
              int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; ++i) {
    Vector sum(0.0f);
    for_each_vector(columns, [&](int64_t j, auto... some) {
      sum = sum + from_bf16(load_half(a + i * a_stride + j, some...)) *
                      from_bf16(load_half(b + i * b_stride + j, some...));
    });
    to[i] = _mm512_reduce_add_ps(sum.v);
  }
}

/// Which of the sixteen queries from `query` on may see the key.
inline __mmask16 may_see(int64_t key, int64_t query, const Visible& of) {
  if (key >= of.keys || query >= of.queries) return 0;
  const __mmask16 queries = first(static_cast<int>(std::min<int64_t>(of.queries - query, kPairs)));
  if (!of.causal) return queries;
  const int64_t hidden = std::clamp<int64_t>(key - of.seen + 1 - query, 0, kPairs);
  return queries & static_cast<__mmask16>(0xFFFFu << hidden);
}

/// What is added to the scores of a key with sixteen queries.
inline Vector mask_of(int64_t key, int64_t query, __mmask16 lanes, const Visible& of) {
  const float* from = of.mask + query * of.mask_query_stride + key * of.mask_key_stride;
  if (of.mask_query_stride == 0) return Vector(*from);
  const __m512i places =
      _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                         _mm512_set1_epi32(static_cast<int>(of.mask_query_stride)));
  return Vector(_mm512_mask_i32gather_ps(_mm512_setzero_ps(), lanes, places, from, 4));
}

/// Writes those of sixteen queries with one key, and returns the gradients of sums as words.
inline __m512i gradients_of_key(const AttentionKernels::Gradients& of, const Visible& visible,
                                int64_t row, int64_t query) {
  const int64_t at = row * of.stride + query, key = of.first + row;
  Vector weight(0.0f), gradient(0.0f);
  if (__mmask16 sees = may_see(key, query, visible)) {
    Vector score = load(of.products + at) * Vector(of.scale);
    if (visible.mask) score = score + mask_of(key, query, sees, visible);
    sees &= is_seen(score);
    weight.v = _mm512_maskz_mov_ps(sees, exponential(score - load(of.log_sum_exp + query)).v);
    const Vector change = load(of.of_weights + at) - load(of.row_dot + query);
    gradient.v = _mm512_maskz_mov_ps(sees, (Vector(of.scale) * weight * change).v);
  }
  store_half(of.weights + at, to_bf16(weight));
  const __m256i rounded = to_bf16(gradient);
  store_half(of.sums + at, rounded);
  return _mm512_cvtepu16_epi32(rounded);
}

void attention_gradients(const AttentionKernels::Gradients& of, const Visible& visible) {
  for (int64_t row = 0; row < of.padded_keys; row += 2)
    for (int64_t i = 0; i < of.stride; i += Vector::width) {
      const __m512i even = gradients_of_key(of, visible, row, i),
                    odd = gradients_of_key(of, visible, row + 1, i);
      const int64_t panel = i / kPanel * kPanel, width = std::min(kPanel, of.stride - panel);
      store_pairs(of.packed_sums + panel * of.padded_keys + row * width + 2 * (i - panel), even,
                  odd);
    }
}

void store_transposed(uint16_t* to, int64_t row_stride, const float* from, int64_t stride,
                      int64_t rows, int64_t columns) {
  for (int64_t i = 0; i < rows; i += kPairs)
    for (int64_t j = 0; j < columns; j += kPairs) {
      const int some = static_cast<int>(std::min(columns - j, kPairs)),
                lines = static_cast<int>(std::min(rows - i, kPairs));
      __m512i block[16];
      for (int c = 0; c < 16; ++c)
        block[c] = c < some ? _mm512_maskz_loadu_epi32(first(lines), from + (j + c) * stride + i)
                            : _mm512_setzero_si512();
      transpose(block);
      for (int r = 0; r < lines; ++r)
        store_half(to + (i + r) * row_stride + j, to_bf16(Vector(_mm512_castsi512_ps(block[r]))),
                   some);
    }
}

constexpr AttentionKernels kAttention = {.pack = pack_panels,
                                         .pack_transpose = pack_transpose_panels,
                                         .copy = copy_rows,
                                         .transpose = transpose_rows,
                                         .softmax = softmax_rows,
                                         .divide = divide_rows,
                                         .dot_rows = dot_rows,
                                         .gradients = attention_gradients,
                                         .store_transpose = store_transposed};

}  // namespace
}  // namespace demi::kernels
