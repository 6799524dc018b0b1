#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "demi/core/export.h"
#include "demi/core/state_dict.h"
#include "demi/step/param_state.h"
#include "demi/step/step_options.h"
#include "demi/step/step_result.h"

namespace demi::optim {

class Backend;
class PendingStep;
class StateShare;
struct Rule;

/// Base of demi's optimizers: torch::optim::Optimizer whose step reads each gradient twice (finite?
/// norm; then update) and writes the parameter, its moments and its low precision copies in that
/// second pass.
///
/// | parameter  | .grad            | updated                                                    |
/// |------------|------------------|------------------------------------------------------------|
/// | fp32       | fp32, fp16, bf16 | itself, with its low precision copies (demi::weights)      |
/// | fp16, bf16 | fp32, fp16, bf16 | an fp32 master; the parameter is its rounded copy          |
/// | fp64       | fp64             | itself, by tensor operations; hyper-parameters are rounded |
/// |            |                  | to fp32                                                    |
///
/// Arithmetic is fp32 in the order of torch.optim's single tensor form. Parameters may lie on
/// several devices, in any layout that does not overlap itself. Sparse gradients are treated as
/// dense. Nobody else may write to a parameter while a step runs.
///
/// On the CPU the passes are split over at::parallel_for; the number of threads changes no bit. On
/// CUDA they are three launches (LAMB four) on the current stream. The device decides, and the host
/// waits for nothing, so a step can be captured in a graph (docs/reference/optim.md). Parameters on
/// several devices cost one host read a step and device. So do devices without kernels of demi's
/// own (DEMI_KERNELS=aten on any), where tensor operations do the same.
class DEMI_API Optimizer : public torch::optim::Optimizer {
 public:
  ~Optimizer() override;
  /// What is recorded for a step, the copies and the hooks follow. Whatever refers to the optimizer
  /// by address (a Scheduler, ShardedOptimizerState, GradScaler between unscale_() and update()) is
  /// to be made anew. The other one may then only be destroyed or assigned to: its calls throw
  /// UsageError.
  Optimizer(Optimizer&& other) noexcept;
  /// The same. Gives up the parameters that it had before.
  Optimizer& operator=(Optimizer&& other) noexcept;

  /// Takes a step with the present gradients, or skips it and then changes nothing at all. Throws
  /// UsageError for a gradient that does not fit its parameter, before anything is changed.
  at::Tensor step(LossClosure closure = nullptr) override;

  /// As torch::optim's, but checks first, so that a wrong group is not added. Options that the
  /// group does not set are those of the optimizer. Throws UsageError for the options of another
  /// optimizer and for an optimizer that shares its state.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  /// What the last step did. A step without check (skip_nonfinite off, no scaler, no clipping)
  /// counts as not skipped and has no norm.
  const StepResult& last_step() const;

  /// The gradient as the next step will use it: fp32, unscaled and clipped. Undefined without a
  /// gradient.
  at::Tensor unscaled_grad(const at::Tensor& parameter);

  /// What GradScaler and clip_grad_* record for the next step. It lives as long as the optimizer.
  PendingStep& pending();

  /// StepOptions::low_precision_grads from here on. Off: gradients of 16 bits become fp32, with
  /// what was recorded for them.
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

  /// State by "PARAMETER.NAME": parameters counted through all groups, names of ParamState;
  /// "taken", int64, (); "scheduled_rates.GROUP", fp64, (steps), of groups that have such rates;
  /// "accepted_norms", fp32, (128), with NormLimit::deviations: the norms of the last steps taken.
  /// The tensors are those of the state itself, which the next step writes to. Of an optimizer that
  /// shares its state: the own part, and what set_others_state() added.
  std::map<std::string, at::Tensor> state_tensors() const;
  /// Throws UsageError for a name or shape that is not this optimizer's, a moment that is missing,
  /// a count that cannot be, and under StepOptions::strict_state for what was saved in another
  /// form, and then changes nothing. Rates that are missing stay as they are.
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

  /// From here on this process keeps the state of the parameters that `share` holds, and drops that
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

  void save(torch::serialize::OutputArchive& archive) const override;
  /// Reads torch::optim's archives of SGD, Adam and AdamW too. Throws UsageError for an archive
  /// that does not fit, and then changes nothing.
  void load(torch::serialize::InputArchive& archive) override;

  /// The name of the update rule, as its class has it: "AdamW".
  const char* rule_name() const;

 protected:
  /// `defaults`: of the rule's own type, as Options::rule(). `backend`: another than the machine's,
  /// for tests; it outlives the optimizer.
  Optimizer(const Rule& rule, const std::vector<torch::optim::OptimizerParamGroup>& groups,
            const torch::optim::OptimizerOptions& defaults, StepOptions options,
            const Backend* backend = nullptr);

 private:
  void set_taken(int64_t taken);
  /// Takes ownership of the parameters' copies and gradients.
  void adopt();
  /// Throws UsageError for an optimizer that shares its state.
  void require_unshared(const char* what) const;

  struct Impl;
  /// Throws UsageError for an optimizer that was moved from.
  Impl& impl() const;
  std::unique_ptr<Impl> impl_;
};

/// An optimizer with `Options`, which name its rule. A group's options are taken by their type:
/// demi's, LibTorch's of the same name, or none. As in LibTorch 2.15, an option of a group that has
/// the value of a fresh `Options()` was not set, and is that of `defaults`.
template <class Options>
class RuleOptimizer : public Optimizer {
 public:
  /// Keeps the parameters' copies from now on. Throws UsageError for no parameters at all, for a
  /// parameter that is named twice, of a dtype that cannot be trained, without memory (meta), or
  /// whose elements share memory, for numbers out of range and for the options of another
  /// optimizer.
  explicit RuleOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                         const Options& defaults = {}, StepOptions step = {})
      : Optimizer(Options::rule(), groups, defaults, step) {}
  explicit RuleOptimizer(std::vector<at::Tensor> parameters, const Options& defaults = {},
                         StepOptions step = {})
      : RuleOptimizer({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults, step) {}

 protected:
  RuleOptimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                const Options& defaults, StepOptions step, const Backend& backend)
      : Optimizer(Options::rule(), groups, defaults, step, &backend) {}
};

}  // namespace demi::optim
