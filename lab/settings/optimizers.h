#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "demi/core/export.h"
#include "demi/optim/optimizer.h"
#include "lab/settings/config.h"

namespace demi::settings {

/// A network's parameters by their groups.
struct OptimizerParameters {
  std::vector<at::Tensor> decay;
  std::vector<at::Tensor> no_decay = {};  // if Config::decay_by_rule is set
  std::vector<at::Tensor> hidden = {};    // if the optimizer takes_matrices
};

/// An optimizer that a config can name. The settings, their help, make_optimizer and `bench step`
/// all read the one list.
struct OptimizerKind {
  std::string name;        // as `--optimizer` names it
  std::string class_name;  // "AdamW"
  /// Config::momentum turns the velocity on (SGD, RMSprop); the others always keep their moments.
  bool momentum_is_optional;
  /// Weight decay that the optimizer's own options have where nobody sets it (Config's is 0).
  double usual_weight_decay;
  /// It is for hidden matrices and convolutions, at Config::muon_lr; AdamW updates the others.
  bool takes_matrices;
  /// demi's optimizer over those parameters, with the config's hyper-parameters. `no_decay` gets a
  /// group of its own, without weight decay, if config.decay_by_rule is set.
  std::unique_ptr<optim::Optimizer> (*make)(const Config& config,
                                            const OptimizerParameters& parameters,
                                            optim::StepOptions step);
  /// LibTorch's optimizer with the same hyper-parameters; null: LibTorch has none.
  std::unique_ptr<torch::optim::Optimizer> (*make_torch)(const Config& config,
                                                         std::vector<at::Tensor> parameters);
  /// Throws UsageError for one of the config's betas and optimizer_options that the optimizer does
  /// not have, or that is out of its range.
  void check(const Config& config) const;
};

/// All optimizers, in the order in which help shows them.
DEMI_API std::span<const OptimizerKind> optimizer_kinds();

/// Throws UsageError with the nearest right name.
DEMI_API const OptimizerKind& find_optimizer(std::string_view name);

/// fp32, bf16, int8. Throws UsageError for any other word.
DEMI_API optim::Moments find_moments(std::string_view word);

/// master, split, split24, stochastic. Throws UsageError for any other word.
DEMI_API optim::WeightMode find_weight_mode(std::string_view word);

}  // namespace demi::settings
