#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include "demi/optim/optimizer.h"
#include "demi/optim/rule_options.h"
#include "demi/step/matrix_options.h"

namespace demi::optim {

/// Options of Muon, of a parameter group.
struct DEMI_API MuonOptions : public RuleOptions<MuonOptions> {
  /// Takes the learning rate; the other options have torch.optim.Muon's defaults.
  MuonOptions(double lr = 1e-3);  // NOLINT(google-explicit-constructor): as torch::optim's
  /// Learning rate. 0 or more. That of a matrix is adjust_lr times as large.
  TORCH_ARG(double, lr) = 1e-3;
  /// Decoupled: the weight shrinks by lr x weight_decay. With `sgd` it is added to the gradient of
  /// that update instead.
  TORCH_ARG(double, weight_decay) = 0.1;
  /// Decay of the momentum buffer, an average of gradients. 0 or more, under 1.
  TORCH_ARG(double, momentum) = 0.95;
  /// Nesterov momentum: the direction is the average of gradient and buffer by `momentum`.
  TORCH_ARG(bool, nesterov) = true;
  /// The type of `ns_coefficients`.
  typedef std::tuple<double, double, double> coefficients_t;
  /// Factors of X, X Xᵀ X and (X Xᵀ)² X in a Newton-Schulz step. Finite.
  TORCH_ARG(coefficients_t, ns_coefficients) = std::make_tuple(3.4445, -4.7750, 2.0315);
  /// The least norm that a direction is divided by. 0 or more.
  TORCH_ARG(double, eps) = 1e-7;
  /// Newton-Schulz steps. 0 to 99.
  TORCH_ARG(int64_t, ns_steps) = 5;
  /// What the learning rate of a matrix is multiplied by. torch.optim.Muon's adjust_lr_fn.
  TORCH_ARG(AdjustLr, adjust_lr) = AdjustLr::original;
  /// adjust_lr is of the last two sizes of the parameter, as the package muon-optimizer has it for
  /// convolutions, instead of its matrix's sides.
  TORCH_ARG(bool, kernel_sides) = false;
  /// Amsel et al. 2025, "The Polar Express" (arXiv 2505.16932): coefficients of their own for each
  /// of five steps, instead of ns_coefficients. Further steps repeat the last.
  TORCH_ARG(bool, polar_express) = false;
  /// Rate of Muon's update as a multiple of lr. 0 or more.
  TORCH_ARG(double, muon) = 1;
  /// MuSGD (ultralytics 8.4): rate of a second update of each weight, that of
  /// torch.optim.SGD with `momentum`, `nesterov` and `weight_decay`, as a multiple of lr. 0: none.
  TORCH_ARG(double, sgd) = 0;
  /// Rows of the matrices that each parameter of the group consists of, in order, as {d, d, d} of
  /// queries, keys and values, or the rows of each head. Empty: a parameter is one matrix. Not
  /// saved: like StepOptions, it is the program's setting.
  TORCH_ARG(std::vector<int64_t>, split_rows) = {};
  /// The dtype of the matrix products. Not saved.
  TORCH_ARG(MatrixProducts, products) = MatrixProducts::automatic;
  /// Matrices of one shape are multiplied together: for many small ones, and on GPUs. The bits of a
  /// matrix may then depend on how many there are. Not saved.
  TORCH_ARG(bool, batched) = false;

 public:
  /// The rule that these are the options of.
  static const Rule& rule();
};

/// torch.optim.Muon, for parameters of any number of dimensions from two on: Jordan et al. 2024,
/// "Muon: an optimizer for hidden layers in neural networks". The direction of the momentum is
/// replaced by its orthogonal factor, by five Newton-Schulz steps of matrix products. A tensor of
/// more dimensions is the matrix (size(0), the product of the others), as convolutions have it.
///
/// Muon is for hidden layers alone: muon_groups() gives the others to another rule.
class DEMI_API Muon : public RuleOptimizer<MuonOptions> {
 public:
  using RuleOptimizer::RuleOptimizer;
};

}  // namespace demi::optim
