#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

namespace demi::optim {

/// Muon's factor of the learning rate of a matrix of A rows and B columns.
enum class AdjustLr : std::uint8_t {
  original,            // sqrt(max(1, A / B)): Jordan et al. 2024
  match_rms_adamw,     // 0.2 sqrt(max(A, B)): Liu et al. 2025, "Muon is scalable for LLM training"
  spectral_unclamped,  // sqrt(A / B): Bernstein and Newhouse 2024
  none,                // 1
};

/// The dtype of Muon's matrix products.
enum class MatrixProducts : std::uint8_t {
  automatic,  // bf16 on a GPU and on a CPU with bf16 instructions (demi::bf16_products), else fp32
  bf16,       // as torch.optim.Muon
  fp32,       // for the formula's accuracy, and where bf16 is slow
};

/// How the directions of a group's parameters become orthogonal.
struct MatrixOptions {
  /// Factors of X, X Xᵀ X and (X Xᵀ)² X in a Newton-Schulz step.
  std::tuple<double, double, double> coefficients = {3.4445, -4.7750, 2.0315};
  /// Newton-Schulz steps. 0 or more, under 100.
  std::int64_t steps = 5;
  /// The least norm that a direction is divided by.
  double epsilon = 1e-7;
  /// Amsel et al. 2025, "The Polar Express": its own coefficients for each of five steps.
  bool polar_express = false;
  /// The factor of the learning rate.
  AdjustLr adjust_lr = AdjustLr::original;
  /// adjust_lr is of the last two sizes of the parameter instead of its matrix's.
  bool kernel_sides = false;
  /// Rows of the matrices that each parameter consists of, in order. Empty: it is one matrix.
  std::vector<std::int64_t> split_rows;
  /// The dtype of the products.
  MatrixProducts products = MatrixProducts::automatic;
  /// Matrices of one shape are multiplied together.
  bool batched = false;

  bool operator==(const MatrixOptions&) const = default;
};

}  // namespace demi::optim
