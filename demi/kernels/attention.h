#pragma once

#include <cstdint>

#include "demi/core/export.h"

namespace demi::kernels {

/// Some queries of one head and its keys. Query i sees the keys before min(keys, seen + i) if
/// `causal`, else all of them, but those whose score is -Inf.
struct Visible {
  std::int64_t queries, keys;
  std::int64_t seen;  // by the first query
  bool causal;
  const float* mask;                                // added to scale sums; or null
  std::int64_t mask_query_stride, mask_key_stride;  // the latter 0 or 1
};

/// The parts of attention between products of bf16 matrices with FP32 sums. A matrix b (k, n) of a
/// product is packed in panels of 64 columns, the last one narrower: of each panel rows 0 and 1
/// column by column, then rows 2 and 3, as TDPBF16PS and VDPBF16PS read it. bf16 is rounded to
/// nearest, ties to even. One thread; calls on other data may overlap.
struct AttentionKernels {
  /// Packs b (rows, columns), with `row_stride` elements from row to row, as (padded_rows,
  /// padded_columns), both even, with zeros behind b.
  void (*pack)(std::uint16_t* to, const std::uint16_t* from, std::int64_t rows,
               std::int64_t columns, std::int64_t row_stride, std::int64_t padded_rows,
               std::int64_t padded_columns);
  /// As pack(), of the transpose of `from` (columns, rows); rows even.
  void (*pack_transpose)(std::uint16_t* to, const std::uint16_t* from, std::int64_t rows,
                         std::int64_t columns, std::int64_t row_stride,
                         std::int64_t padded_columns);
  /// to (padded_rows, columns) = from (rows, columns), with zeros behind it.
  void (*copy)(std::uint16_t* to, const std::uint16_t* from, std::int64_t rows,
               std::int64_t columns, std::int64_t row_stride, std::int64_t padded_rows);
  /// to (columns, padded_rows) = the transpose of from (rows, columns), with zeros behind it.
  void (*transpose)(std::uint16_t* to, const std::uint16_t* from, std::int64_t rows,
                    std::int64_t columns, std::int64_t row_stride, std::int64_t padded_rows);

  /// Softmax of the scores scale sums + mask; sums (queries, stride). Writes weights (queries,
  /// stride) = exp(score - their row's largest), 0 for keys that are not seen; total (queries),
  /// their FP32 sums; log_sum_exp (queries), that of the scores. A query that sees no key has a
  /// total of 1.
  void (*softmax)(std::uint16_t* weights, float* total, float* log_sum_exp, const float* sums,
                  std::int64_t stride, float scale, const Visible& visible);
  /// to (rows, columns) = from (rows, stride) / divisor (rows); null: 1.
  void (*divide)(std::uint16_t* to, std::int64_t row_stride, const float* from, std::int64_t stride,
                 std::int64_t rows, std::int64_t columns, const float* divisor);
  /// to (rows) = the sums of a b by row.
  void (*dot_rows)(float* to, const std::uint16_t* a, std::int64_t a_stride, const std::uint16_t* b,
                   std::int64_t b_stride, std::int64_t rows, std::int64_t columns);

  /// What gradients() reads and writes. Given `products`, the sums of the keys from `first` on by
  /// queries, and `of_weights`, the gradients of weights, it writes weights exp(score -
  /// log_sum_exp) and gradients of sums, scale weights (of_weights - row_dot), both 0 where a key
  /// is not seen; the latter also packed. All are (padded_keys, stride), log_sum_exp and row_dot
  /// (stride).
  struct Gradients {
    std::uint16_t *weights, *sums, *packed_sums;
    const float *products, *of_weights;
    const float *log_sum_exp, *row_dot;
    std::int64_t first, padded_keys, stride;
    float scale;
  };
  void (*gradients)(const Gradients& of, const Visible& visible);

  /// to (rows, columns) = the transpose of from (columns, stride).
  void (*store_transpose)(std::uint16_t* to, std::int64_t row_stride, const float* from,
                          std::int64_t stride, std::int64_t rows, std::int64_t columns);
};

/// The kernels; null on a processor without AVX-512, or if DEMI_KERNELS or ATEN_CPU_CAPABILITY asks
/// for an older path.
DEMI_API const AttentionKernels* attention_kernels();

}  // namespace demi::kernels
