#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "demi/core/export.h"
#include "demi/kernels/step_table.h"
#include "demi/step/norm_guard.h"
#include "demi/step/step_options.h"
#include "demi/step/step_records.h"
#include "demi/step/step_result.h"
#include "demi/step/step_warnings.h"

namespace demi::optim {

class Backend;
class MemberSource;
class TensorTable;
struct GroupedMember;
struct Groups;
struct Member;

/// The next step of one of demi's optimizers (Optimizer::pending()): what GradScaler and
/// clip_grad_* record for it, and what it has measured of the gradients. Recording synchronises
/// nothing. How long a record holds is in step_records.h; the tensors that records speak of are
/// here.
///
/// The parameters lie in one table a device, whatever their rules, and one for fp64. If the only
/// table is served by a device's kernels, the device decides, and the host reads nothing. The host
/// joins what several tables found, which waits for each device once a step.
class DEMI_API PendingStep : public std::enable_shared_from_this<PendingStep> {
 public:
  ~PendingStep();
  PendingStep(const PendingStep&) = delete;
  PendingStep& operator=(const PendingStep&) = delete;

  /// The gradients are `scale` (fp32, (), on any device) times the true ones. A clip that was
  /// measured before stays a factor of these gradients. Throws UsageError for a scale that is out
  /// of range, if that is known without waiting for a device.
  void set_scale(const at::Tensor& scale);
  /// set_scale(), which also divides gradients that are not of 16 bits by the scale now, in place.
  void unscale_(const at::Tensor& scale);
  /// What backward has done to the gradients since unscale_().
  enum class Since {
    kUnscaled,    // nothing: they are as unscale_() or the program left them
    kLeftBehind,  // it has made all anew: none of those that unscale_() saw is left
    kMixed,       // some are divided by the scale, or are sums that are in part
  };
  Since since_unscale();
  /// GradScaler::update() without a step: what is recorded now holds only for gradients that nobody
  /// writes to from here on. A step after update() uses them; after zero_grad(false) and a backward
  /// they are others.
  void end_inspection();

  bool has_gradients() const;
  /// Reads the gradients, unless that was done since they changed.
  void measure();
  // These measure first. fp32, (), on the device that decides.
  at::Tensor found_inf();  // 0 or 1
  at::Tensor grad_norm();  // L2, of the unscaled gradients before clipping
  at::Tensor greatest();   // magnitude among the unscaled gradients
  /// found_inf() after set_scale(); `wide_unscaled`: only gradients of 16 bits carry the scale.
  at::Tensor found_inf_under(const at::Tensor& scale, bool wide_unscaled);

  /// The step is skipped if this (fp32, ()) is not 0, whatever its own gradients are.
  void skip_if(const at::Tensor& found_inf);
  /// Whether it has a StepOptions::skip_norm_above.
  bool has_norm_limit() const { return guard_.has_value(); }
  /// The norm of these gradients, as part of that of all optimizers that step together. Measures.
  NormPart norm_part();
  /// Whether a norm is above this optimizer's limit: fp32, (), 0 or 1, on the norm's device. It has
  /// one.
  at::Tensor is_above_limit(const at::Tensor& norm) { return guard_->is_above(norm); }
  /// The step is skipped if `decision` says so, as long as the gradients stay what they are.
  void decide_by_norm(const NormDecision& decision);
  /// Whether it is, and they do.
  bool is_still_decided_by_norm();

  /// The step is taken with Inf and NaN in its gradients, whatever skip_if() says.
  void take_nonfinite();
  /// clip_grad_norm_ over all gradients of the optimizer. A gradient that is written to later keeps
  /// the factor of this call. Returns false, and does nothing, if other factors are recorded.
  bool clip_norm(double max_norm);
  /// One more factor (fp32, ()) on the unscaled gradients of these parameters. It replaces an
  /// earlier one.
  void multiply(const std::vector<at::Tensor>& parameters, const at::Tensor& factor);
  /// Clamps the gradients of these parameters to [-limit, limit], after all factors.
  void clip_value(const std::vector<at::Tensor>& parameters, double limit);
  /// Writes scale, factors and limits into .grad, as fp32, so that more can be recorded.
  void apply_recorded_factors();
  /// apply_recorded_factors(), but only if anything is recorded for a gradient of 16 bits, which
  /// then needs no record.
  void write_16_bit_gradients_as_fp32();

  /// The gradient as the step will use it: fp32, unscaled and clipped. Undefined without a
  /// gradient.
  at::Tensor unscaled_grad(const at::Tensor& parameter);

 private:
  friend class Optimizer;
  friend class OptimizerState;

  /// `source` and `backend` outlive it.
  PendingStep(StepOptions options, const Backend& backend, MemberSource& source);

  // What the optimizer calls.
  const StepOptions& options() const { return options_; }
  const Backend& backend() const { return backend_; }
  /// Takes the step or skips it, and forgets what was recorded.
  StepResult run(const torch::optim::Optimizer* optimizer, const at::Tensor& loss);
  /// Steps taken. Waits for the device.
  int64_t taken() const;
  void set_taken(int64_t taken);
  /// NormGuard::window(). Undefined without a limit.
  at::Tensor accepted_norms() const { return guard_ ? guard_->window() : at::Tensor(); }
  void set_accepted_norms(const at::Tensor& norms) {
    if (guard_) guard_->set_window(norms);
  }
  double bytes_per_parameter() const { return bytes_; }

  /// A parameter with a gradient, and its place in records_.tensors.
  struct Reader {
    Member* member = nullptr;  // null: it has no gradient
    std::size_t place = 0;
  };

  // The tables.
  void prepare();
  bool update_groups(const Groups& groups);
  void build(std::vector<GroupedMember> members, const Groups& groups);
  void move_records(std::vector<TensorTable>& from);
  std::ptrdiff_t place_of(const at::Tensor& parameter);
  bool read_gradients();
  Reader reader_of(const at::Tensor& parameter);

  // The records.
  void note(const Event& event);
  void check_scale(const at::Tensor& scale) const;
  void record_scale(const at::Tensor& scale, bool wide_unscaled);
  void make_clip_a_factor(float max_norm);
  void keep_gradients();
  void write_gradients();
  at::Tensor used_gradient(const Reader& reader) const;

  // The step.
  bool checks() const { return has_norm_limit() || records_.checks(options_.skip_nonfinite); }
  bool skips_nonfinite() const { return records_.skips(options_.skip_nonfinite); }
  std::optional<c10::Device> deciding_device() const;
  void set_inputs();
  void measure_if_outdated();
  void measure_now();
  void join();
  void join_earlier_found();
  void decide_alone();
  void step();
  void update_joined();
  StepResult result(const torch::optim::Optimizer* optimizer, const at::Tensor& loss) const;
  void join_recording();
  at::Tensor recorded(int field, float joint) const;
  at::Tensor clip_factor(float max_norm) const;
  float scale() const;

  StepOptions options_;
  const Backend& backend_;
  MemberSource& source_;
  std::vector<TensorTable> tables_;
  std::int64_t builds_ = 0;                           // of the tables
  std::map<std::pair<int, int>, at::Tensor> states_;  // by device type and index

  StepRecords records_;
  std::vector<Seen> seen_;    // by tensor, at the last look
  at::Tensor scale_;          // fp32, (); undefined: 1
  at::Tensor found_inf_;      // fp32, (): decides instead of the gradients
  at::Tensor earlier_found_;  // fp32, (): what was found when the clip was measured
  std::optional<NormGuard> guard_;
  NormDecision by_norm_;  // while records_.decided
  StepWarnings warnings_;

  kernels::StepState joint_;  // if the host joins
  bool joint_above_ = false;  // the step was skipped for its norm alone
  at::Tensor record_;         // fp32, (6): a kernels::StepRecord, if the device decides
  int64_t taken_ = 0;         // if the host joins
  double bytes_ = 0;
};

}  // namespace demi::optim
