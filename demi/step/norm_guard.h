#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "demi/core/export.h"
#include "demi/step/step_options.h"
#include "demi/step/streams.h"

namespace demi::optim {

/// The norm of one optimizer's gradients: both fp32, (), on any device.
struct NormPart {
  at::Tensor norm;       // L2
  at::Tensor found_inf;  // not 0: an Inf or NaN among them
};

/// The norm of all gradients of a step: both fp32, (), on the device of the first part.
struct JointNorm {
  at::Tensor norm;    // L2, without the parts that hold an Inf or NaN
  at::Tensor finite;  // 0 or 1; 1 if there is no Inf or NaN
};

/// Does not synchronise, if all parts are on one device.
DEMI_API JointNorm joint_norm(const std::vector<NormPart>& parts);

/// Whether a step is skipped for its norm.
struct NormDecision {
  JointNorm joint;
  at::Tensor above;  // fp32, (), 0 or 1
};

/// StepOptions::skip_norm_above with the norms that it has seen. Tensor operations on the device of
/// the norms, so that nothing is read back.
class DEMI_API NormGuard {
 public:
  static constexpr int64_t kWindow = 128;
  /// Skipped steps in a row after which it warns.
  static constexpr int64_t kWarnAfter = 20;

  /// Throws UsageError for a limit that is out of range, or none.
  explicit NormGuard(const NormLimit& limit);

  /// Whether a norm (fp32, ()) is above the limit: fp32, (), 0 or 1.
  at::Tensor is_above(const at::Tensor& norm);
  /// Call it after the step. `skipped`: fp32, (), not 0 if it was skipped, for whatever reason.
  void note(const NormDecision& decision, const at::Tensor& skipped);

  /// fp32, (kWindow): norms of the last steps that were taken, oldest first; -1: there is none yet.
  /// Undefined if the limit needs none, or before the first step.
  const at::Tensor& window() const { return norms_; }
  /// Sets the window() of another run with the same option. Undefined: none yet. Throws UsageError
  /// for a tensor that is no window.
  void set_window(const at::Tensor& norms);

 private:
  bool uses_window() const;
  void come_to(c10::Device device);
  void warn();

  NormLimit limit_;
  at::Tensor norms_;
  at::Tensor in_a_row_;  // fp32, (): steps skipped for their norm since the last one taken
  at::Tensor mirror_;    // fp32, (), on the host; a device writes it when it comes to it
  StreamUse streams_;    // of norms_ and in_a_row_
  bool warned_ = false;
};

/// Throws UsageError for what cannot be a window.
DEMI_API void check_window(const at::Tensor& norms);

}  // namespace demi::optim
