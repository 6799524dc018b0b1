#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <string>
#include <vector>

#include "demi/checkpoint/checkpoint.h"

namespace demi::checkpoint {

/// The optimizer's parameters by group, each under the first of its names in the module, or
/// "more/0" for the first of `more` (Job::more); "": it is neither's.
ParameterGroups parameter_names(const torch::optim::Optimizer& optimizer,
                                const torch::nn::Module& module,
                                const std::vector<at::Tensor>& more);

/// The numbers of an optimizer's parameters in a checkpoint. Numbers count through all groups.
struct ParameterMatch {
  std::vector<std::size_t> now;    // by number in the checkpoint: the number in the optimizer
  std::vector<std::string> names;  // by number in the optimizer: in the module
  bool same_groups = true;         // each group holds the same parameters, in any order
};

/// Matches them by name; those of a checkpoint without names by number. Throws UsageError if the
/// optimizer holds other parameters than the one that was saved did, and for a checkpoint without
/// names if its groups have other sizes.
ParameterMatch match_parameters(const Checkpoint& checkpoint, const std::string& part,
                                const torch::optim::Optimizer& optimizer,
                                const torch::nn::Module& module,
                                const std::vector<at::Tensor>& more);

}  // namespace demi::checkpoint
