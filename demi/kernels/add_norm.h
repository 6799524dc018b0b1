#pragma once

#include <cstdint>

#include "demi/core/export.h"
#include "demi/kernels/storage.h"

namespace demi::kernels {

/// LayerNorm (Ba et al. 2016, equation 4) or RMSNorm (Zhang and Sennrich 2019, equation 4) of each
/// row of a sum, a pass over memory for each of
///
///     forward    s = x + add, rounded to `storage`;  m = mean of s, or 0 for RMSNorm
///                r = 1 / sqrt(mean of (s - m)^2 + eps);  y = (s - m) r weight + bias
///     backward   g = dy weight;  h = (s - m) r
///                dx = ds + r ((g - mean of g) - h (mean of g h)), for RMSNorm without mean of g
///                blocks of sums of dy h and of dy
///
/// Arithmetic is FP32, and each result is rounded once. Arrays are dense. Inf and NaN of a row
/// reach all of its results, as through LibTorch's operators.
struct AddNorm {
  Storage storage;  // of x, s and their gradients
  Storage added;    // of add and its gradient: as storage, or of 16 bits with a storage of FP32
  Storage normed;   // of y and its gradient: likewise
  bool centered;    // LayerNorm; false: RMSNorm
  std::int64_t rows, width;
  float eps;

  const void* input;    // x, (rows, width)
  const void* add;      // as x; or null: s is x
  const float* weight;  // (width); or null
  const float* bias;    // (width); or null
  void* sum;            // s, which forward writes where there is `add`
  void* output;         // y, as x
  float* mean;          // m, (rows), written by forward
  float* inverse;       // r, (rows), written by forward

  const void* sum_gradient;     // ds, as x; or null: 0
  const void* output_gradient;  // dy, as x
  void* input_gradient;         // dx, as x
  void* add_gradient;           // dx in the storage of add; or null
  float* sums;                  // (pieces_of(), 2, width), written by backward; or null
};

/// A pass of the two.
enum class AddNormPass { forward, backward };

/// Pieces that a pass consists of, each of some rows, which are independent of each other. How they
/// are shared among threads changes no bit.
DEMI_API std::int64_t pieces_of(const AddNorm& norm);

}  // namespace demi::kernels
