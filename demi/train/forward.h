#pragma once

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <vector>

#include "demi/autocast/autocast.h"
#include "demi/data/loader.h"
#include "demi/train/network.h"
#include "demi/train/precision.h"

namespace demi::train {

/// FP32 matrix products, convolutions and recurrent layers in tf32 (CUDA) or not, until the end of
/// the scope; process-wide. On a CPU they are FP32 in any case, also where
/// at::Context::setFloat32MatmulPrecision allows less. At the end all is as the user had it, set by
/// LibTorch's older functions, its newer ones, or both.
class Tf32Mode {
 public:
  explicit Tf32Mode(bool allow);
  ~Tf32Mode();
  Tf32Mode(const Tf32Mode&) = delete;
  Tf32Mode& operator=(const Tf32Mode&) = delete;

 private:
  std::vector<at::Float32Precision> before_;  // of what newer functions set
  at::Float32MatmulPrecision matmul_before_;  // of the older ones
  bool convolution_before_;
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
