#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "demi/autocast/autocast.h"
#include "demi/data/loader.h"
#include "demi/train/network.h"
#include "demi/train/precision.h"

namespace demi::train {

/// FP32 matrix products and convolutions in tf32 or not, until the end of the scope; process-wide,
/// CUDA only.
class Tf32Mode {
 public:
  explicit Tf32Mode(bool allow);
  ~Tf32Mode();
  Tf32Mode(const Tf32Mode&) = delete;
  Tf32Mode& operator=(const Tf32Mode&) = delete;

 private:
  bool matmul_before_, convolution_before_;
};

/// The autocast region of a mixed precision on the device; a disabled one for the others. Where it
/// is that of demi::global_policy(), the policy's region, whose softmax is FP32.
Autocast region_of(const Precision& precision, c10::Device device);

/// The batch with floating point inputs in the weights' dtype where the precision is not mixed.
data::Batch input_for(const Precision& precision, const data::Batch& batch);

/// The batch through the network in `precision`: inside an autocast region where it is mixed, with
/// floating point inputs in the weights' dtype where it is not.
at::Tensor forward_in(const Precision& precision, const Network& network, const data::Batch& batch,
                      c10::Device device);

}  // namespace demi::train
