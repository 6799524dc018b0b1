#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>

// softmax(scale q k^T + mask) v, after all checks.
namespace demi::sdpa {

/// The elements that dropout keeps. Element (n, h, i, j) has the number (first_row + n) H + h of
/// its matrix, first_token + i and first_token + j.
struct Dropout {
  double p = 0;
  std::uint64_t seed = 0;
  std::uint32_t offset = 0;
  std::int64_t first_row = 0, first_token = 0;
};

struct Problem {
  at::Tensor q;     // (N, H, T, E)
  at::Tensor k;     // (N, G, S, E)
  at::Tensor v;     // (N, G, S, F)
  at::Tensor mask;  // (N, H, T, S) with any of them 1, bool or floating point; undefined: none
  bool causal = false;
  std::int64_t past = 0;
  double scale = 1;
  Dropout dropout;

  std::int64_t queries() const { return q.size(2); }
  std::int64_t keys() const { return k.size(2); }
  std::int64_t heads_per_key() const { return q.size(1) / k.size(1); }
};

/// LibTorch's kernels hide keys by -Inf, and scale by an FP32 number after that: -Inf times a scale
/// of 0 or below is NaN or Inf.
inline bool is_ordinary_scale(double scale) { return scale >= std::numeric_limits<float>::min(); }

struct Result {
  at::Tensor out;          // (N, H, T, F) in q's dtype
  at::Tensor log_sum_exp;  // (N, H, T), of those paths whose backward reads it
};

/// Gradients in the shapes and dtypes of what they belong to, or undefined if not wanted. Written
/// whole, but mask, which is added to.
struct Gradients {
  at::Tensor q, k, v, mask;
};

}  // namespace demi::sdpa
