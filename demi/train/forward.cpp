#include "demi/train/forward.h"

#include <ATen/autocast_mode.h>

#include "demi/core/error.h"
#include "demi/tensor/device.h"

namespace demi::train {

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

// The regions stay open, with their copies of weights; LibTorch is told that none holds.
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

void check_device(c10::Device device) {
  if (device.is_cuda()) pick_device(device.str());
}

void check(const Network& network, std::string_view where, bool needs_forward) {
  const char* what = !network.module                     ? "the network has no module"
                     : needs_forward && !network.forward ? "the network has no forward function"
                                                         : nullptr;
  if (what)
    throw UsageError({.where = where,
                      .what = what,
                      .accepted = "a module and a function that computes its output for a batch",
                      .advice = "train::network(model) makes both from a module holder"});
}

data::Batch input_for(const Precision& precision, const data::Batch& batch) {
  data::Batch result = batch;
  if (!batch.input.defined() || !batch.input.is_floating_point()) return result;
  if (!precision.is_mixed() || batch.input.scalar_type() == c10::kDouble)
    result.input = batch.input.to(precision.weights);
  return result;
}

at::Tensor forward_in(const Precision& precision, const Network& network, const data::Batch& batch,
                      c10::Device device, const std::optional<OpPolicy>& ops) {
  const Autocast region = region_of(precision, device, ops);
  return network.forward(input_for(precision, batch));
}

}  // namespace demi::train
