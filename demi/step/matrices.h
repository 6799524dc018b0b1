#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "demi/core/export.h"
#include "demi/step/matrix_options.h"

// Parameters as matrices, for Muon: (size(0), product of the other sizes), flattened in memory
// order, since the orthogonal factor of M P is that of M times P for every permutation P of
// columns.
namespace demi::optim {

/// The matrix's sides.
struct Sides {
  std::int64_t rows, columns;
};

/// The matrices of a parameter of these sizes, two or more.
std::vector<Sides> matrices_of(at::IntArrayRef sizes, const MatrixOptions& options);

/// adjust_lr of a parameter, the greatest among its matrices'.
double rate_factor_of(at::IntArrayRef sizes, const MatrixOptions& options);

/// The dtype of the products for an array of this dtype and device. FP64 arrays have FP64 products.
c10::ScalarType product_dtype(const at::Tensor& work, const MatrixOptions& options);

/// Multiplications of a step of the Newton-Schulz iteration of a parameter: 2 m²n + m³ for each
/// matrix of m and n >= m rows and columns.
double multiplications_of(at::IntArrayRef sizes, const MatrixOptions& options);

/// Directions of one parameter or several of one shape and layout: `count` arrays like `work` in
/// the dtype of the products, `stride` elements apart, from the start of `memory` (1-D) on.
struct Directions {
  at::Tensor memory;
  std::int64_t count = 1, stride = 0;
};

/// Puts U Vᵀ, nearly, in the place of each matrix U S Vᵀ (Jordan et al. 2024), times its adjust_lr
/// over rate_factor_of(). FP32 or bf16 arithmetic of LibTorch's products, whose bits are those of
/// torch.optim.Muon if `directions` is one matrix in bf16 and the calling thread computes alone.
/// Inf and NaN spread over their matrix. On a GPU it runs on the current stream and waits for
/// nothing. Call it without autograd.
DEMI_API void orthogonalise(const Directions& directions, const at::Tensor& work,
                            const MatrixOptions& options);

}  // namespace demi::optim
