#pragma once

#include <torch/optim/optimizer.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "demi/optim/rule.h"
#include "demi/step/param_state.h"
#include "demi/step/step_options.h"

// Saved states of an optimizer. All of a state is read and checked before any of it is used. The
// functions throw UsageError for a state that does not fit.
namespace demi::optim {

using NamedTensors = std::map<std::string, at::Tensor>;  // as Optimizer::state_tensors()

/// An optimizer's archive, as torch::save wrote it.
struct Archived {
  NamedTensors tensors;
  std::vector<std::unique_ptr<OptimizerOptions>> options;  // by group
};

/// Writes what torch::optim's optimizer of the same name reads, and besides it "rule" and "taken".
/// `rules`: of each group. `tensors`: as Optimizer::state_tensors().
void write_archive(torch::serialize::OutputArchive& archive, const Rules& rules,
                   const std::vector<torch::optim::OptimizerParamGroup>& groups,
                   const NamedTensors& tensors);

/// Reads archives of demi's optimizers and of torch::optim's SGD, Adam, AdamW, RMSprop and
/// Adagrad. Those of torch::optim count steps as a number, or not at all, and do not name their
/// class: it is known by the names of options and state. `rules`, `group_sizes`: the rule and the
/// number of parameters of each group.
Archived read_archive(torch::serialize::InputArchive& archive, const Rules& rules,
                      const std::vector<size_t>& group_sizes);

struct LoadedState {
  /// The states by parameter, through all groups. Null: no state.
  std::vector<std::unique_ptr<ParamState>> of;
  int64_t taken = 0;
};

/// Copies `tensors` into states of these parameters, and releases each one once it is copied.
/// States of parameters that are not `held` are only checked. `rules`: of each parameter.
LoadedState read_state(NamedTensors tensors, const Rules& rules,
                       const std::vector<at::Tensor>& parameters, const std::vector<bool>& held);

/// A parameter's state in the form of this optimizer's: demi's, or that of torch::optim's SGD, Adam
/// or AdamW, whose tensors are copied. Null for an empty state. Throws UsageError for any other
/// state, and for one that lacks a tensor of the rule.
std::unique_ptr<ParamState> own_state(const torch::optim::OptimizerParamState& state,
                                      const Rule& rule, const at::Tensor& parameter);

/// Takes the scheduled rates, "scheduled_rates.GROUP", out of `tensors`: by group, fp64, (steps),
/// on the CPU.
std::map<size_t, at::Tensor> take_scheduled_rates(NamedTensors& tensors, size_t groups);

/// Throws UsageError for a weight or a state that this optimizer would keep in another form than it
/// was saved in (StepOptions::strict_state). `groups`: of each parameter.
void require_own_forms(const LoadedState& loaded, const std::vector<at::Tensor>& parameters,
                       const std::vector<kernels::Group>& groups, const StepOptions& options);

/// Warns once, with the greatest error, if states that were saved in FP32 are to be kept in fewer
/// bits. `groups`: of each parameter.
void warn_of_coding(const LoadedState& loaded, const std::vector<at::Tensor>& parameters,
                    const std::vector<kernels::Group>& groups, Moments moments);

/// Takes the norms for StepOptions::skip_norm_above out of `tensors`; undefined if there are none.
/// Throws UsageError for impossible norms.
inline constexpr auto kAcceptedNorms = "accepted_norms";
at::Tensor take_accepted_norms(NamedTensors& tensors);

}  // namespace demi::optim
