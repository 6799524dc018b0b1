#include "demi/optim/batch_norm_guard.h"

#include <torch/nn/module.h>
#include <torch/types.h>

#include <string_view>

namespace demi {

BatchNormGuard::BatchNormGuard(const torch::nn::Module& module) {
  for (const auto& item : module.named_buffers()) {
    const std::string_view name = item.key();
    for (const std::string_view known : {"running_mean", "running_var", "num_batches_tracked"})
      if (name.ends_with(known)) {
        names_.push_back(item.key());
        buffers_.push_back(item.value());
      }
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

void BatchNormGuard::restore() {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < buffers_.size(); ++i) buffers_[i].copy_(kept_[i]);
}

std::map<std::string, at::Tensor> BatchNormGuard::kept() const {
  std::map<std::string, at::Tensor> all;
  for (std::size_t i = 0; i < names_.size(); ++i) all[names_[i]] = kept_[i];
  return all;
}

void BatchNormGuard::remember(const std::map<std::string, at::Tensor>& kept) {
  remember();
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < names_.size(); ++i)
    if (const auto found = kept.find(names_[i]);
        found != kept.end() && found->second.sizes() == kept_[i].sizes())
      kept_[i].copy_(found->second);
}

void BatchNormGuard::restore_if_skipped(const StepResult& result) {
  restore_if_skipped(std::vector<StepResult>{result});
}

void BatchNormGuard::restore_if_skipped(const std::vector<StepResult>& results) {
  const at::NoGradGuard no_grad;
  at::Tensor all_skipped;  // where a device decides
  for (const StepResult& result : results) {
    if (!result.is_on_device()) {
      if (!result.skipped()) return;
      continue;
    }
    const at::Tensor skipped = result.found_inf() != 0;
    all_skipped =
        all_skipped.defined() ? all_skipped.logical_and(skipped.to(all_skipped.device())) : skipped;
  }
  for (std::size_t i = 0; i < buffers_.size(); ++i)
    buffers_[i].copy_(all_skipped.defined()
                          ? at::where(all_skipped.to(buffers_[i].device()), kept_[i], buffers_[i])
                          : kept_[i]);
}

}  // namespace demi
