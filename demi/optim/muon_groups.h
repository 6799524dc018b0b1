#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <utility>
#include <vector>

#include "demi/core/export.h"
#include "demi/optim/muon.h"

namespace torch::nn {
class Module;
}

namespace demi::optim {

/// A module's parameters by what Muon is for (Jordan et al. 2024). `hidden`: the weights of hidden
/// layers, which are matrices and convolutions. `others`: the weights of embeddings, also if a head
/// shares them; the head; and all parameters of one dimension or none, as biases and normalisations
/// have them.
struct MuonParameters {
  std::vector<at::Tensor> hidden;
  std::vector<at::Tensor> others;
};
/// Each parameter of the module is in one of the two, in the order of parameters(). Submodules
/// included. The head is the module that was registered last of those with parameters, if it is a
/// Linear or a convolution; `heads` names other weights instead. Throws UsageError for one of them
/// that is no parameter of the module.
DEMI_API MuonParameters muon_parameters(const torch::nn::Module& module,
                                        const std::vector<at::Tensor>& heads = {});

/// The groups of MultiOptimizer for a module: Muon's, then those of another rule, without weight
/// decay where a parameter has one dimension or none.
///
///     demi::optim::MultiOptimizer optimizer(muon_groups(
///         *model, demi::optim::MuonOptions(0.02), demi::optim::AdamWOptions(3e-4)));
template <class Options>
std::vector<torch::optim::OptimizerParamGroup> muon_groups(
    const torch::nn::Module& module, const MuonOptions& muon, const Options& others,
    const std::vector<at::Tensor>& heads = {}) {
  const MuonParameters parameters = muon_parameters(module, heads);
  std::vector<at::Tensor> decay, no_decay;
  for (const at::Tensor& one : parameters.others)
    (one.dim() <= 1 ? no_decay : decay).push_back(one);
  std::vector<torch::optim::OptimizerParamGroup> made;
  made.emplace_back(parameters.hidden, std::make_unique<MuonOptions>(muon));
  made.emplace_back(std::move(decay), std::make_unique<Options>(others));
  made.emplace_back(std::move(no_decay),
                    std::make_unique<Options>(Options(others).weight_decay(0)));
  return made;
}

}  // namespace demi::optim
