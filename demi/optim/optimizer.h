#pragma once

#include <torch/optim/optimizer.h>

#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "demi/kernels/step_table.h"
#include "demi/step/param_state.h"
#include "demi/step/step_options.h"
#include "demi/step/step_result.h"

namespace demi::optim {

struct Groups;
struct OptionsReader;

/// Base of demi's optimizers: torch::optim::Optimizer whose step reads each gradient twice (finite?
/// norm; then update) and writes the parameter, its moments and its low precision copies in that
/// second pass.
///
/// | parameter | .grad | updated |
/// |---|---|---|
/// | fp32 | fp32, fp16, bf16 | itself, with its low precision copies (demi::weights) |
/// | fp16, bf16 | fp32, fp16, bf16 | an fp32 master inside the optimizer; the parameter is its
/// rounded copy | | fp64 | fp64 | itself, by tensor operations; hyper-parameters are rounded to
/// fp32 |
///
/// Arithmetic is fp32 in the order of torch.optim's single tensor form. Parameters may lie on
/// several devices, in any layout that does not overlap itself; sparse gradients count as the dense
/// ones that they stand for. Parameters may not be written by others while a step runs. On the CPU
/// the passes are split over at::parallel_for; the number of threads changes no bit. On CUDA they
/// are three launches (LAMB four) on the current stream; all is decided there, and the host waits
/// for nothing, so a step can be captured in a graph (docs/reference/optim.md). Parameters on
/// several devices cost one host read a step and device; so do devices without kernels of demi's
/// own (DEMI_KERNELS=aten on any), where tensor operations do the same.
class DEMI_API Optimizer : public torch::optim::Optimizer {
 public:
  ~Optimizer() override;

  /// Takes a step with the gradients there are, or skips it and then changes nothing at all. Throws
  /// UsageError for a gradient that does not fit its parameter, before anything is changed.
  at::Tensor step(LossClosure closure = nullptr) override;

  /// As torch::optim's, but checks first, so that a wrong group is not added.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  /// What the last step did. `skipped` and norm of a step without check (skip_nonfinite off, no
  /// scaler, no clipping) are unknown: not skipped, no norm.
  const StepResult& last_step() const;

  /// fp32 gradient as the next step will use it: unscaled and clipped by what was recorded.
  /// Undefined without a gradient.
  at::Tensor unscaled_grad(const at::Tensor& parameter);

  // What GradScaler and clip_grad_* record for the next step. None of it synchronises. It belongs
  // to the gradients that are there: for one that is gone or replaced since (zero_grad(), another
  // backward) nothing is recorded any more, and where all are, neither is unscale_().

  /// The gradients are `scale` (fp32, (), on any device) times the true ones; `wide_unscaled`: only
  /// those of 16 bits are. What clip_norm() has measured before stays a factor of these gradients.
  void set_scale(const at::Tensor& scale, bool wide_unscaled = false);
  /// The same, and fp32 gradients are divided by it now, in place.
  void unscale_(const at::Tensor& scale);
  /// GradScaler::update() without a step: what is recorded holds on only for gradients that nobody
  /// writes to from now on (a step after update() uses them; zero_grad(false) and a backward make
  /// others of them). Synchronises nothing.
  void end_look();
  /// Expires with the optimizer.
  std::weak_ptr<Optimizer> watch() const;
  /// Reads the gradients, unless that was done since they changed.
  void measure();
  bool has_gradients() const;
  at::Tensor found_inf();  // fp32, (), 0 or 1; measures
  at::Tensor found_inf_under(const at::Tensor& scale, bool wide_unscaled);  // after set_scale()
  at::Tensor grad_norm();  // fp32, (), L2, unscaled, before clipping; measures
  at::Tensor greatest();   // fp32, (), magnitude among the unscaled gradients; measures
  /// The next step skips where this (fp32, ()) is not 0, instead of by its own gradients.
  void skip_if(const at::Tensor& found_inf);
  /// clip_grad_norm_ over all gradients of this optimizer. A gradient written to after it keeps the
  /// factor of this call, as if that had been multiplied in. False where other factors are recorded
  /// already: then nothing is done.
  bool clip_norm(double max_norm);
  /// One more factor (fp32, ()) on the unscaled gradients of these parameters, instead of an
  /// earlier one.
  void multiply(const std::vector<at::Tensor>& parameters, const at::Tensor& factor);
  /// Clamps them to [-limit, limit], after all factors.
  void clip_value(const std::vector<at::Tensor>& parameters, double limit);
  /// Writes all that is recorded into .grad, as fp32, so that something can be recorded on top of
  /// it.
  void settle();

  /// Learning rates by the count of steps taken, for a group: they replace the group's own, and are
  /// looked up where the step is decided, so a skipped step does not advance them. Steps beyond the
  /// last rate use the last.
  void set_scheduled_rates(size_t group, const std::vector<double>& rates);

  /// Bytes of tensors that the last step's passes read and wrote, for each parameter that had a
  /// gradient.
  double bytes_per_parameter() const;

  /// State by "PARAMETER.NAME": parameters counted through all groups, names of ParamState; and
  /// "taken", int64, ().
  std::map<std::string, at::Tensor> state_tensors() const;
  /// Throws UsageError for a name or shape that is not this optimizer's, a moment that is missing
  /// or a count that cannot be, and then changes nothing.
  void load_state_tensors(const std::map<std::string, at::Tensor>& tensors);

 protected:
  Optimizer(kernels::UpdateRule rule, const std::vector<torch::optim::OptimizerParamGroup>& groups,
            std::unique_ptr<torch::optim::OptimizerOptions> defaults, StepOptions options);

  /// The group's numbers for the kernels. Throws UsageError for one that is out of its range.
  virtual kernels::Group numbers_of(const torch::optim::OptimizerOptions& options) const = 0;

  /// To be called by the constructor of the last class: takes hold of the parameters.
  void adopt();

  /// Options and state from what torch::save wrote; nothing is changed where that does not fit.
  void load_archive(torch::serialize::InputArchive& archive, const OptionsReader& options);

 private:
  void set_taken(int64_t taken);
  bool knows_all() const;
  void build(const Groups& groups);
  void prepare();

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace demi::optim
