#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "demi/loop/observer.h"
#include "demi/optim/optimizer.h"

namespace demi::loop {

/// The settings that a batch runs with.
struct RunSetting {
  Precision precision;
  std::optional<OpPolicy> op_policy;
  GradScaler* scaler = nullptr;
};

/// The region and the scaler that a repeated batch asks for, in the place of the run's while it
/// lives.
class RepeatSetting {
 public:
  RepeatSetting(RunSetting& run, const RepeatOptions& how)
      : run_(run),
        before_(run),
        other_(how.loss_scale && *how.loss_scale != 1 ? GradScaler({.init_scale = *how.loss_scale})
                                                      : GradScaler({.enabled = false})) {
    if (!how.autocast) run.precision.autocast.reset();
    if (how.format) {
      run.precision.autocast = how.format;
      run.op_policy = how.op_policy;
    }
    if (!how.scaler || how.loss_scale) run.scaler = &other_;
  }
  ~RepeatSetting() { std::swap(run_, before_); }
  RepeatSetting(const RepeatSetting&) = delete;
  RepeatSetting& operator=(const RepeatSetting&) = delete;

 private:
  RunSetting& run_;
  RunSetting before_;
  GradScaler other_;
};

/// demi's optimizers have gradients of 16 bits while it lives.
class LowPrecisionGrads {
 public:
  explicit LowPrecisionGrads(const std::vector<torch::optim::Optimizer*>& optimizers) {
    for (torch::optim::Optimizer* optimizer : optimizers) {
      auto* ours = dynamic_cast<optim::Optimizer*>(optimizer);
      if (!ours || ours->low_precision_grads()) continue;
      ours->set_low_precision_grads(true);
      switched_.push_back(ours);
    }
  }
  ~LowPrecisionGrads() {
    try {
      for (optim::Optimizer* optimizer : switched_) optimizer->set_low_precision_grads(false);
    } catch (...) {  // NOLINT(bugprone-empty-catch): no memory for gradients that nobody needs any
                     // more, or an exception that is on its way already
    }
  }
  LowPrecisionGrads(const LowPrecisionGrads&) = delete;
  LowPrecisionGrads& operator=(const LowPrecisionGrads&) = delete;

 private:
  std::vector<optim::Optimizer*> switched_;
};

}  // namespace demi::loop
