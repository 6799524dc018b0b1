#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <optional>

#include "demi/autocast/op_policy.h"
#include "demi/data/loader.h"
#include "demi/loop/precision.h"
#include "demi/train/network.h"

namespace demi::train {

/// Throws DeviceError for a CUDA device that this machine does not have.
void check_device(c10::Device device);

/// The batch. If the precision is not mixed, floating point inputs have the weights' dtype; if it
/// is, FP64 inputs are FP32, since a region casts all but FP64.
data::Batch input_for(const Precision& precision, const data::Batch& batch);

/// The loader's choice of a batch, if it lies on the device; else undefined.
at::Tensor choice_on(c10::Device device, const data::Loader& loader, int64_t epoch,
                     int64_t position);

/// The network's output for the batch as input_for() makes it, in an autocast region if the
/// precision is mixed.
at::Tensor forward_in(const Precision& precision, const Network& network, const data::Batch& batch,
                      c10::Device device, const std::optional<OpPolicy>& ops = std::nullopt);

}  // namespace demi::train
