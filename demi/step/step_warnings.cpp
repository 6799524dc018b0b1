#include "demi/step/step_warnings.h"

#include <torch/types.h>

#include "demi/step/tensor_table.h"

namespace demi::optim {

void StepWarnings::of_write() {
  if (warned_of_write_) return;
  warned_of_write_ = true;
  TORCH_WARN(
      "[optim.step] a 16-bit gradient was written to after unscale_(), or another tensor was put "
      "in its place: it still carries the loss scale (unscale_ records the factor, since 16 bits "
      "would underflow), so whatever compares it with a true magnitude is wrong, as "
      "torch::nn::utils::clip_grad_norm_ is, and an fp32 tensor that was made from it is stepped "
      "with the scale on. Use demi::optim::clip_grad_norm_ and clip_grad_value_, which know the "
      "scale; Optimizer::unscaled_grad() shows true gradients, and without "
      "StepOptions::low_precision_grads .grad holds them.");
}

void StepWarnings::of_clipping(float scale, float norm) {
  const double scaled_norm = static_cast<double>(norm) * scale;
  if (!clip_watch_.note(scale, scaled_norm)) return;
  TORCH_WARN("[optim.step] the gradients with the loss scale of ", scale, " on had a norm of ",
             scaled_norm,
             " in three steps in a row: it looks as if they were clipped before they were divided, "
             "as by torch::nn::utils::clip_grad_norm_ before scaler.unscale_(optimizer), so each "
             "update is too small by up to the scale. Call unscale_ first, then clip.");
}

void StepWarnings::of_overflow(std::vector<TensorTable>& tables) {
  if (warned_of_overflow_) return;
  for (auto& table : tables) {
    for (const Member& member : table.members()) {
      if (member.codec != kernels::WeightCodec::split_fp16 ||
          member.parameter.isfinite().all().item<bool>())
        continue;
      warned_of_overflow_ = true;
      TORCH_WARN("[optim.step] parameter ", member.number, ", of shape ", member.sizes,
                 ", has become Inf: a step took it beyond fp16's 65,504, and steps are skipped as "
                 "long as their gradients come from it. Go back to an earlier state, and lower the "
                 "learning rate or train in bf16; WeightMode::master keeps such a number in FP32.");
      return;
    }
  }
}

}  // namespace demi::optim
