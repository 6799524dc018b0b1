#include "demi/loop/region.h"

#include <ATen/autocast_mode.h>

#include "demi/autocast/apply.h"
#include "demi/autocast/policy.h"

namespace demi::loop {

Backends backends_in(const Precision& precision, const Backends& given) {
  Backends backends = given;
  if (!backends.cuda_matmul_allow_tf32) backends.cuda_matmul_allow_tf32 = precision.tf32;
  if (!backends.cudnn_allow_tf32) backends.cudnn_allow_tf32 = precision.tf32;
  if (!backends.mkldnn_fp32_precision) backends.mkldnn_fp32_precision = "ieee";
  return backends;
}

Autocast region_of(const Precision& precision, c10::Device device,
                   const std::optional<OpPolicy>& ops) {
  const Policy policy = global_policy();
  if (!ops && policy.is_mixed() && precision.autocast == policy.compute_dtype())
    return Autocast(device.type(), policy);  // softmax in FP32, as Keras has it
  return Autocast(
      device.type(),
      AutocastOptions{.dtype = precision.autocast, .enabled = precision.is_mixed(), .policy = ops});
}

void apply_recipe(const Precision& precision, torch::nn::Module& model) {
  if (precision.recipe.empty() || !precision.is_mixed() || !quantized_layers(model).empty()) return;
  demi::apply(OpPolicy::of_recipe(precision.recipe, model), model);
}

// Switches the regions off for LibTorch; they stay open, with their copies of weights.
OutsideRegions::OutsideRegions(c10::Device device) {
  for (const c10::DeviceType type : {c10::DeviceType::CPU, device.type()}) {
    if (!at::autocast::is_autocast_available(type) || !at::autocast::is_autocast_enabled(type))
      continue;
    at::autocast::set_autocast_enabled(type, false);
    left_.push_back(type);
  }
}

OutsideRegions::~OutsideRegions() {
  for (const c10::DeviceType type : left_) at::autocast::set_autocast_enabled(type, true);
}

}  // namespace demi::loop
