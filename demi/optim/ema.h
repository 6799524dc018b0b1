#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "demi/core/export.h"
#include "demi/step/step_result.h"

namespace torch::nn {
class Module;
}

namespace demi {

/// Exponential moving average of weights: average += (1 - decay) (weight - average), after each
/// step that was taken; as torch.optim.swa_utils.get_ema_multi_avg_fn. Averages are fp32 (fp64 of
/// fp64 weights) and start as the weights; buffers (running statistics) are copied.
///
///     demi::EMA ema(*model);
///     ema.update(scaler.step(optimizer));   // a skipped step changes no average
///     ema.swap(); evaluate(model); ema.swap();
class DEMI_API EMA {
 public:
  /// decay: 0 to 1. The module must outlive it.
  explicit EMA(torch::nn::Module& module, double decay = 0.999);

  void update();
  /// The same, unless the step was skipped. A device decides that itself, and nothing waits.
  void update(const StepResult& result);

  /// Puts the averages in the place of the weights, to evaluate with them. A second call brings the
  /// weights back bit for bit. Do not update or train in between. 16-bit weights get rounded
  /// averages.
  void swap();

  /// Whether the averages are in the place of the weights now.
  bool is_swapped() const { return !parked_.empty() && parked_.begin()->second.defined(); }

  /// By the module's parameter or buffer name.
  const std::map<std::string, at::Tensor>& averages() const { return averages_; }
  /// Throws UsageError if names or shapes differ, and then changes nothing. Lets go of each tensor
  /// once it is copied.
  void load(std::map<std::string, at::Tensor> averages);
  /// Throws what load() would throw, and changes nothing.
  void check(const std::map<std::string, at::Tensor>& averages) const;

 private:
  /// `skipped`: fp32, (), decides on its device; undefined: not skipped.
  void update_unless(const at::Tensor& skipped);

  double decay_;
  std::map<std::string, at::Tensor> weights_, buffers_;
  std::map<std::string, at::Tensor> averages_;
  /// Weights and buffers during swap(); else undefined.
  std::map<std::string, at::Tensor> parked_;
};

}  // namespace demi
