#pragma once

#include <torch/optim/optimizer.h>

#include <utility>
#include <vector>

#include "demi/core/export.h"
#include "demi/optim/optimizer_state.h"
#include "demi/step/param_state.h"
#include "demi/step/step_options.h"
#include "demi/step/step_result.h"

namespace demi::optim {

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
///
/// All groups have one rule (RuleOptimizer), or each its own (MultiOptimizer).
class DEMI_API Optimizer : public OptimizerState {
 public:
  /// Moves the state, the records for the next step, the copies and the hooks. Objects that refer
  /// to the optimizer by address (a Scheduler, ShardedOptimizerState, GradScaler between unscale_()
  /// and update()) have to be made anew. The other optimizer may then only be destroyed or assigned
  /// to: its calls throw UsageError.
  Optimizer(Optimizer&& other) noexcept;
  /// Moves `other` here as the constructor does. Gives up the parameters that it had before.
  Optimizer& operator=(Optimizer&& other) noexcept;

  /// Takes a step with the present gradients, or skips it and then changes nothing at all. Throws
  /// UsageError for a gradient that does not fit its parameter, before anything is changed.
  at::Tensor step(LossClosure closure = nullptr) override;

  /// Adds a group as torch::optim's does, but checks it first: a wrong group is not added. Options
  /// that the group does not set are those of the optimizer; MultiOptimizer's are whole. Throws
  /// UsageError for the options of another optimizer and for an optimizer that shares its state.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  /// The result of the last step. A step without check (skip_nonfinite off, no scaler, no clipping)
  /// counts as not skipped and has no norm.
  const StepResult& last_step() const;

  /// The gradient as the next step will use it: fp32, unscaled and clipped. Undefined without a
  /// gradient.
  at::Tensor unscaled_grad(const at::Tensor& parameter);

 protected:
  friend DEMI_API void replace_parameter(Optimizer& optimizer, const at::Tensor& old,
                                         const at::Tensor& replacement, const at::Tensor& rows);

  /// `defaults`: of the rule's own type, as Options::rule(). `backend`: another than the machine's,
  /// for tests; it outlives the optimizer.
  Optimizer(const Rule& rule, const std::vector<torch::optim::OptimizerParamGroup>& groups,
            const torch::optim::OptimizerOptions& defaults, StepOptions options,
            const Backend* backend = nullptr);
  /// The options of each group name its rule.
  Optimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups, StepOptions options,
            const Backend* backend = nullptr);

 private:
  void begin();
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
