#include "demi/optim/batch_norm_guard.h"

#include <torch/nn/module.h>
#include <torch/types.h>

#include <string_view>

namespace demi {

BatchNormGuard::BatchNormGuard(const torch::nn::Module& module) {
  for (const auto& item : module.named_buffers()) {
    const std::string_view name = item.key();
    for (const std::string_view known : {"running_mean", "running_var", "num_batches_tracked"})
      if (name.ends_with(known)) buffers_.push_back(item.value());
  }
  remember();
}

void BatchNormGuard::remember() {
  const at::NoGradGuard no_grad;
  kept_.resize(buffers_.size());
  for (size_t i = 0; i < buffers_.size(); ++i) {
    at::Tensor& kept = kept_[i];
    const bool fits = kept.defined() && kept.device() == buffers_[i].device() &&
                      kept.scalar_type() == buffers_[i].scalar_type();
    if (fits)
      kept.copy_(buffers_[i]);
    else
      kept = buffers_[i].clone();
  }
}

void BatchNormGuard::restore_if_skipped(const StepResult& result) {
  const at::NoGradGuard no_grad;
  const bool on_device = result.is_on_device();
  if (!on_device && !result.skipped()) return;
  const at::Tensor found_inf = result.found_inf();
  for (size_t i = 0; i < buffers_.size(); ++i)
    buffers_[i].copy_(on_device ? at::where(found_inf != 0, kept_[i], buffers_[i]) : kept_[i]);
}

}  // namespace demi
