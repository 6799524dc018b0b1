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
  /// The same, unless the step was skipped. On a device this is decided there and nothing waits.
  void update(const StepResult& result);

  /// The averages take the weights' places, to evaluate with them; called again, the weights come
  /// back bit for bit. Not to be updated or trained in between. 16-bit weights get rounded
  /// averages.
  void swap();

  /// By parameter or buffer name, as it stands in the module.
  const std::map<std::string, at::Tensor>& averages() const { return averages_; }
  /// Throws UsageError where names or shapes differ, and then changes nothing.
  void load(const std::map<std::string, at::Tensor>& averages);

 private:
  void move(const at::Tensor& keep);

  double decay_;
  std::map<std::string, at::Tensor> weights_, buffers_;
  std::map<std::string, at::Tensor> averages_;
  std::map<std::string, at::Tensor>
      parked_;  // the weights, while the averages stand in their place
};

}  // namespace demi
