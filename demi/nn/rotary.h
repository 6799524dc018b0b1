#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "demi/core/export.h"

namespace demi::nn {

/// Cosines and sines of rotary positions (Su et al., RoFormer, 2021, section 3.2.2): (T, size / 2),
/// or (N, 1, T, size / 2).
struct RotaryAngles {
  /// Floating point, of one shape; FP32 from rotary_angles.
  at::Tensor cos, sin;

  /// Whether there are angles.
  bool defined() const { return cos.defined(); }
};

/// The angles position * theta^(-2 i / size), i from 0 to size / 2 - 1. `positions` (T) or (N, T),
/// int64. Throws UsageError for an odd size, for other positions, and for a theta that is not above
/// 0.
DEMI_API RotaryAngles rotary_angles(const at::Tensor& positions, std::int64_t size,
                                    double theta = 10000);

/// x (..., T, size), as (N, H, T, size), with feature i and feature i + size / 2 turned by angle i:
/// the half-split layout of Hugging Face's Llama. Meta's files have pairs (2 i, 2 i + 1), which is
/// another order of the rows of the projections. Computed in FP32, in x's dtype. Throws UsageError
/// for an odd size and for angles that cannot be broadcast to x's rows, heads and tokens.
DEMI_API at::Tensor rotate(const at::Tensor& x, const RotaryAngles& angles);

/// Positions (N, T) that restart with each document. `cu_seqlens` as demi::attention has it.
/// Throws UsageError where demi::attention does: documents that do not add up to the tokens, do not
/// follow each other, or cross rows. Synchronises.
DEMI_API at::Tensor document_positions(const at::Tensor& cu_seqlens, std::int64_t rows,
                                       std::int64_t tokens);

}  // namespace demi::nn
