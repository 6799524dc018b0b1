#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "demi/autocast/op_policy.h"
#include "demi/data/loader.h"
#include "demi/scaler/grad_scaler.h"
#include "demi/train/network.h"
#include "demi/train/precision.h"

namespace demi::train {

/// How a batch is repeated.
struct RepeatOptions {
  bool autocast = true;  // false: in FP32
  bool scaler = true;    // false: the loss is not scaled
  /// fp16 or bf16: in a region of this format and policy in place of the run's.
  std::optional<c10::ScalarType> format = std::nullopt;
  std::optional<OpPolicy> op_policy = std::nullopt;
  /// The factor of the loss in place of the run's.
  std::optional<double> loss_scale = std::nullopt;
  /// Called with the network's output, as Callback::after_forward.
  std::function<void(const at::Tensor& output)> after_forward = {};
  /// Called with each loss, scaled, before its backward.
  std::function<void(const at::Tensor& loss)> before_backward = {};
};

/// A batch in training and what trains on it, for the hooks of Callback. Valid during the call.
struct StepView {
  int64_t epoch = 1, step = 1;  // that the batch belongs to
  bool ends_step = true;        // the optimizers step after this batch
  const data::Batch& batch;     // on the run's device
  const Network& network;
  const std::vector<std::shared_ptr<torch::optim::Optimizer>>& optimizers;
  const GradScaler& scaler;
  const Precision& precision;
  /// Of the batch, unscaled and without a graph; the sum of several. Undefined before forward.
  at::Tensor loss;
  /// Forward and backward of the batch once more, from the present weights, buffers and random
  /// numbers; adds to the gradients. Returns the loss as above. What is not to change, the caller
  /// puts back.
  std::function<at::Tensor(const RepeatOptions&)> repeat;
};

}  // namespace demi::train
