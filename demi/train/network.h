#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <utility>

#include "demi/data/loader.h"

namespace demi::train {

/// A model of any type as the trainer sees it: its module, and how a batch goes through it.
struct Network {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const data::Batch&)>
      forward;  // to logits or predictions, in the dtype they come in
};

/// From a module holder (torch::nn::Linear, demi::models::FashionCNN, one of yours). `forward` is
/// called with the batch's input, and with its lengths too where the model takes two tensors.
template <class Holder>
Network network(Holder model) {
  Network result;
  result.module = model.ptr();
  result.forward = [model](const data::Batch& batch) mutable -> at::Tensor {
    constexpr bool takes_lengths = requires { model->forward(batch.input, batch.lengths); };
    if constexpr (takes_lengths) {
      if (batch.lengths.defined()) return model->forward(batch.input, batch.lengths);
    }
    return model->forward(batch.input);
  };
  return result;
}

}  // namespace demi::train
