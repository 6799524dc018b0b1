#pragma once

#include <torch/nn/module.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "demi/checkpoint/safetensors.h"
#include "demi/core/export.h"
#include "lab/models/registry.h"

namespace demi::workload {

/// The tensors of a file under the names of a network, as far as they fit it.
struct NamedForNetwork {
  checkpoint::NamedTensors tensors;  // those that fit
  /// Tensors that do not fit, in the network's order: "stem.0.weight (64, 3, 7, 7) for (64, 3, 3,
  /// 3)".
  std::vector<std::string> misfits;
  /// The network's module that gives its outputs, if the file has another shape of it; empty if the
  /// shape is the same or does not fit.
  std::string new_head;
  std::string head_shapes;       // of its weight: "(3, 2048), in the file (1000, 2048)"
  bool is_torchvisions = false;  // the file has torchvision's names
  /// The part of all names in the file, at their beginning or within them, that was left out:
  /// "module.", "_orig_mod."; empty: none.
  std::string left_out;
  std::string unknown;  // the first name in the file that is of no part of the network
  /// Names in the file and in the network, of tensors that both have.
  std::vector<std::pair<std::string, std::string>> renamed;
};

/// Finds the names: the network's own, or those of torchvision's model if more of these are in the
/// file; with or without the prefixes of torch.compile, DataParallel and other modules around a
/// network. `model`: null for a network of another kind, which has neither head nor other names.
DEMI_API NamedForNetwork name_for(const torch::nn::Module& network, const models::ModelInfo* model,
                                  checkpoint::NamedTensors file);

/// The first three, and how many there are besides.
DEMI_API std::string first_of(const std::vector<std::string>& misfits);

}  // namespace demi::workload
