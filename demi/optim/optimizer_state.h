#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "demi/core/state_dict.h"
#include "demi/step/step_options.h"

namespace demi::optim {

class Backend;
class PendingStep;
class StateShare;
struct Rule;

/// The state that an optimizer of demi's keeps from step to step: moments, counts and learning
/// rates, how they are saved and loaded, and which of them this process keeps. The base of
/// Optimizer, which a loop calls; checkpoints, scalers and sharded states call this.
class DEMI_API OptimizerState : public torch::optim::Optimizer {
 public:
  ~OptimizerState() override;

  /// The name of the update rule, as its class has it: "AdamW". If groups have different rules,
  /// the name of each group's: "SGD, AdamW".
  std::string rule_name() const;

  /// The records that GradScaler and clip_grad_* make for the next step. They live as long as the
  /// optimizer.
  PendingStep& pending();

  /// Sets StepOptions::low_precision_grads from here on. Off: gradients of 16 bits become fp32, and
  /// their records are applied.
  void set_low_precision_grads(bool on);
  bool low_precision_grads() const;

  /// StepOptions::weight_mode.
  WeightMode weight_mode() const;
  /// StepOptions::strict_state.
  bool is_strict() const;

  /// Learning rates of a group by the count of steps taken; they replace the group's own. They are
  /// read where the step is decided, so a skipped step does not advance them. Steps beyond the last
  /// rate use the last. None: the group's own again. Throws UsageError for a group that there is
  /// not, and for a rate that is negative or not finite.
  void set_scheduled_rates(size_t group, const std::vector<double>& rates);

  /// The table that set_scheduled_rates() was given: fp64, (steps), on the CPU. Undefined: none.
  at::Tensor scheduled_rates(size_t group) const;
  /// Steps taken so far, without those that were skipped. Waits for the device.
  int64_t steps_taken() const;

  /// Tensor bytes that the last step's passes read and wrote, for each element with a gradient.
  double bytes_per_parameter() const;

  /// What a step costs for each parameter through all groups, by which ranks share the work: its
  /// elements, and for Muon its products, a thousand multiplications and additions as an element.
  std::vector<int64_t> step_costs() const;

  /// State by "PARAMETER.NAME": parameters counted through all groups, names of ParamState;
  /// "taken", int64, (); "scheduled_rates.GROUP", fp64, (steps), of groups that have such rates;
  /// "accepted_norms", fp32, (128), with NormLimit::deviations: the norms of the last steps taken.
  /// The tensors are those of the state itself, which the next step writes to. If the optimizer
  /// shares its state, they are its own part, and the tensors of set_others_state().
  std::map<std::string, at::Tensor> state_tensors() const;
  /// Loads such tensors. Throws UsageError, and then changes nothing, for a name or shape that is
  /// not this optimizer's, a missing moment, an impossible count, and, under
  /// StepOptions::strict_state, a state that was saved in another form. Rates that are missing stay
  /// as they are.
  void load_state_tensors(const std::map<std::string, at::Tensor>& tensors);

  /// The options of each parameter group as numbers, under torch.optim's names: "lr", "betas.0",
  /// "betas.1", ..., flags as 0 or 1.
  std::vector<StateDict> group_numbers() const;

  /// Checks the state and copies it. The function that it returns puts the state in place and
  /// throws nothing, so that several objects can be loaded all or none; the optimizer must be alive
  /// then. `groups`: as group_numbers(); an option that is missing keeps its value, and if there
  /// are no groups, all options do. Throws UsageError as load_state_tensors(), for another number
  /// of groups, and for an option that is unknown or out of its range.
  /// Lets go of each tensor once it is copied.
  std::function<void()> prepare_state(std::map<std::string, at::Tensor> tensors,
                                      const std::vector<StateDict>& groups = {});

  void save(torch::serialize::OutputArchive& archive) const override;
  /// Reads torch::optim's archives of SGD, Adam, AdamW, RMSprop and Adagrad, too. Throws UsageError
  /// for an archive that does not fit, and then changes nothing.
  void load(torch::serialize::InputArchive& archive) override;

  /// Shares the state: this process keeps that of the parameters that `share` holds, and drops that
  /// of the others. A step reads the gradients of all parameters (finite? norm), updates those that
  /// are held, and calls share->exchange(). bytes_per_parameter() counts those that are held.
  /// Throws UsageError for an optimizer that shares its state already.
  void share_state(std::shared_ptr<StateShare> share);
  /// Whether the state of one of its parameters is this process's to keep.
  bool keeps_state_of(const at::Tensor& parameter) const;
  /// Whether state_tensors() has the state of all parameters.
  bool has_whole_state() const;
  /// The state of the parameters that other processes hold, named as in state_tensors(). The next
  /// step and load drop it.
  void set_others_state(std::map<std::string, at::Tensor> tensors);
  /// Drops it now.
  void drop_others_state();

 protected:
  /// `rule`: of all groups; null: the options of each group name its rule.
  OptimizerState(const Rule* rule, const std::vector<torch::optim::OptimizerParamGroup>& groups,
                 const torch::optim::OptimizerOptions& defaults, StepOptions options,
                 const Backend* backend);
  OptimizerState(OptimizerState&& other) noexcept;
  OptimizerState& operator=(OptimizerState&& other) noexcept;

  struct Impl;
  /// Throws UsageError for an optimizer that was moved from.
  Impl& impl() const;
  std::unique_ptr<Impl> impl_;
};

}  // namespace demi::optim
