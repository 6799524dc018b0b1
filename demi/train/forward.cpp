#include "demi/train/forward.h"

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

data::Batch input_for(const Precision& precision, const data::Batch& batch) {
  data::Batch result = batch;
  if (!precision.is_mixed() && batch.input.is_floating_point())
    result.input = batch.input.to(precision.weights);
  return result;
}

at::Tensor forward_in(const Precision& precision, const Network& network, const data::Batch& batch,
                      c10::Device device, const std::optional<OpPolicy>& ops) {
  const Autocast region = region_of(precision, device, ops);
  return network.forward(input_for(precision, batch));
}

}  // namespace demi::train
