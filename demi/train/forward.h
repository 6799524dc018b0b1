#pragma once

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <optional>
#include <vector>

#include "demi/autocast/autocast.h"
#include "demi/data/loader.h"
#include "demi/train/network.h"
#include "demi/train/precision.h"

namespace demi::train {

/// Whether FP32 matrix products, convolutions and recurrent layers may use tf32 on CUDA, until the
/// end of the scope, in the whole process. On a CPU they are FP32 in any case, even if
/// at::Context::setFloat32MatmulPrecision allows less. The destructor puts the user's settings
/// back, whether they were made by LibTorch's older functions, its newer ones, or both.
class Tf32Mode {
 public:
  explicit Tf32Mode(bool allow);
  ~Tf32Mode();
  Tf32Mode(const Tf32Mode&) = delete;
  Tf32Mode& operator=(const Tf32Mode&) = delete;

 private:
  std::vector<at::Float32Precision> before_;  // settings of the newer functions
  at::Float32MatmulPrecision matmul_before_;  // settings of the older ones
  bool convolution_before_;
};

/// The autocast region of a mixed precision on the device; a disabled region for other precisions.
/// Ops run as `ops` says. Without it, if the precision is that of demi::global_policy(), this is
/// the policy's region, which runs softmax in FP32.
Autocast region_of(const Precision& precision, c10::Device device,
                   const std::optional<OpPolicy>& ops = std::nullopt);

/// The batch. If the precision is not mixed, floating point inputs have the weights' dtype.
data::Batch input_for(const Precision& precision, const data::Batch& batch);

/// The network's output for the batch: in an autocast region if the precision is mixed, otherwise
/// with floating point inputs in the weights' dtype.
at::Tensor forward_in(const Precision& precision, const Network& network, const data::Batch& batch,
                      c10::Device device, const std::optional<OpPolicy>& ops = std::nullopt);

}  // namespace demi::train
