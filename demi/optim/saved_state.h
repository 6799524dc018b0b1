#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "demi/kernels/step_table.h"
#include "demi/step/param_state.h"

// Saved states of an optimizer. All of a state is read and checked before any of it is used. The
// functions throw UsageError for a state that does not fit.
namespace demi::optim {

using NamedTensors = std::map<std::string, at::Tensor>;  // as Optimizer::state_tensors()

/// What torch::save wrote of an optimizer.
struct Archived {
  NamedTensors tensors;
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options;  // by group
};

/// Reads the options of one group from its archive.
struct OptionsReader {
  /// Names of the options.
  std::vector<std::string> names;
  std::function<std::unique_ptr<torch::optim::OptimizerOptions>(torch::serialize::InputArchive&)>
      read;
  /// In place, since users hold references.
  std::function<void(torch::optim::OptimizerOptions& to,
                     const torch::optim::OptimizerOptions& from)>
      assign;
};

DEMI_API void write_rule(torch::serialize::OutputArchive& archive, kernels::UpdateRule rule);

/// Reads archives of demi's optimizers and of torch::optim's SGD, Adam and AdamW. Those of
/// torch::optim count steps as a number, or not at all, and do not name their class: it is known by
/// the names of options and state. `group_sizes`: number of parameters of each group.
Archived read_archive(torch::serialize::InputArchive& archive, kernels::UpdateRule rule,
                      const std::vector<size_t>& group_sizes, const OptionsReader& options);

struct LoadedState {
  /// By parameter, through all groups. Null: no state.
  std::vector<std::unique_ptr<ParamState>> of;
  int64_t taken = 0;
};

/// Copies `tensors` into states of these parameters.
LoadedState read_state(const NamedTensors& tensors, kernels::UpdateRule rule,
                       const std::vector<at::Tensor>& parameters);

}  // namespace demi::optim
