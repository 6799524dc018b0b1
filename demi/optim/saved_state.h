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

// The state of an optimizer from outside, read and checked whole before any of it is used. All
// throw UsageError for a state that does not fit.
namespace demi::optim {

using NamedTensors = std::map<std::string, at::Tensor>;  // as Optimizer::state_tensors()

/// What torch::save wrote of an optimizer.
struct Archived {
  NamedTensors tensors;
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options;  // by group
};

/// Of one group, from its archive.
struct OptionsReader {
  std::vector<std::string> names;  // of the options
  std::function<std::unique_ptr<torch::optim::OptimizerOptions>(torch::serialize::InputArchive&)>
      read;
  std::function<void(torch::optim::OptimizerOptions& to,
                     const torch::optim::OptimizerOptions& from)>
      assign;  // in place: users hold references
};

DEMI_API void write_rule(torch::serialize::OutputArchive& archive, kernels::UpdateRule rule);

/// Of demi's own, and of torch::optim's SGD, Adam and AdamW (which count steps as a number, or not
/// at all, and do not say of which class they are: options and names of the state tell).
/// `group_sizes`: parameters of each group.
Archived read_archive(torch::serialize::InputArchive& archive, kernels::UpdateRule rule,
                      const std::vector<size_t>& group_sizes, const OptionsReader& options);

struct LoadedState {
  std::vector<std::unique_ptr<ParamState>> of;  // by parameter, through all groups; null: none
  int64_t taken = 0;
};

/// `tensors` as the state of these parameters under the rule; copies.
LoadedState read_state(const NamedTensors& tensors, kernels::UpdateRule rule,
                       const std::vector<at::Tensor>& parameters);

}  // namespace demi::optim
