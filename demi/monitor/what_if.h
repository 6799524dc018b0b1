#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "demi/autocast/op_policy.h"
#include "demi/core/export.h"
#include "demi/loop/observer.h"
#include "demi/monitor/cure.h"
#include "demi/monitor/format_loss.h"
#include "demi/monitor/origin.h"

namespace demi::monitor {

/// The 16-bit run that WhatIf asks about.
struct WhatIfOptions {
  /// The dtype of the run's region: fp16 or bf16.
  c10::ScalarType format = c10::ScalarType::Half;
  /// The dtypes that ops run in there, and the parts that are in FP32 already.
  OpPolicy policy = {};
  /// The loss scale at the run's beginning; 1: the loss is not scaled.
  double loss_scale = 65536;
  /// The scale is halved for a batch until none of its gradients overflows, but not below 1; false:
  /// it stays.
  bool dynamic_scale = true;
};

/// The effect of the format on one kind of tensor of one op, in all batches together.
struct TensorFate {
  std::string layer;  // whose weights the op reads, else the layer before it; "": none
  std::string op;     // "addmm"
  TensorPlace place = TensorPlace::output;  // which tensor of the op
  FormatLoss loss;                          // of gradients: times the loss scale
  /// The source of an overflow that the op does not make itself: "addmm in layers.0", "batch
  /// input".
  std::string from;
};

/// The findings of WhatIf, and its proposal.
struct WhatIfResult {
  c10::ScalarType format = c10::ScalarType::Half;  // the format that was tried
  /// Number of batches that were examined, and their first and last step.
  std::int64_t batches = 0, first_step = 0, last_step = 0;
  /// The range of the loss scale over those batches.
  double least_scale = 1, greatest_scale = 1;  // of the batches
  /// Every tensor that would be in 16 bits, the most harmed first: overflows in the order of
  /// training, those that an op only passes on behind the others; then by the share of the norm
  /// that becomes 0; then by the share of the numbers that does, or that loses digits.
  std::vector<TensorFate> tensors;
  /// The parts and ops that have to compute in FP32 so that no tensor overflows or loses a tenth of
  /// its norm or more. None of them can be left out.
  std::vector<Cure> cures;
  /// WhatIfOptions::policy with the cures.
  OpPolicy policy;
  /// The origin of Inf or NaN in a batch that no cure makes finite: the format cannot train it as
  /// it is.
  std::optional<Origin> uncured;
  /// The step from which on loss or gradients of the FP32 run itself are not finite, whatever the
  /// format. Then there are no cures, and no later step was examined.
  std::optional<std::int64_t> diverged;

  /// The parts among the cures, as --fp32-part of the program takes them.
  DEMI_API std::vector<std::string> fp32_parts() const;
  /// A file for OpPolicy::from_file: `policy`, with the reason of each cure as a comment.
  DEMI_API std::string policy_text() const;
};

/// Asks in an FP32 run which tensors would leave the range of fp16 or bf16 in a region: outputs of
/// ops and what is cast for them, weights, gradients of activations and of weights.
///
///     const auto what_if = std::make_shared<demi::monitor::WhatIf>();
///     trainer.add(what_if);
///     trainer.fit(loader);
///     what_if->result().policy.to_file("op_policy.txt");
///
/// An observer of ops follows which tensors the region would hold in 16 bits: what the products
/// give and, with the op policy, all that is computed from it; which dtype a cast by hand takes is
/// seen when the first batch is run in the region. Each of these tensors is rounded to the format
/// and counted before and after, and its gradient is counted. Loss and optimizer are FP32 in a
/// mixed run, too, and are not looked at. Then the batch is repeated in the region, with the cures
/// that are known: if its loss or a gradient is Inf or NaN, as where rounding makes 0 of what a
/// logarithm reads, the op is found, and what cures it. Every batch waits for the device, and takes
/// about the time of three in FP32 and one in the format.
///
/// An op is named with a layer by the weights that it reads, as by Monitor.
class DEMI_API WhatIf : public loop::StepObserver {
 public:
  /// Throws UsageError for another format, and for a loss scale that is not positive or beyond
  /// FP32.
  explicit WhatIf(WhatIfOptions options = {});
  ~WhatIf() override;

  /// Throws UsageError if the run is not FP32.
  void before_forward(const loop::StepView& view) override;
  void after_forward(const loop::StepView& view, const at::Tensor& output) override;
  void after_backward(const loop::StepView& view) override;

  /// The result over the batches so far.
  WhatIfResult result() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace demi::monitor
