#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <utility>

#include "demi/data/loader.h"

namespace demi::train {

/// A model of any type, as the trainer uses it: its module, and a function that computes its output
/// for a batch.
struct Network {
  std::shared_ptr<torch::nn::Module> module;
  /// Logits or predictions, in any dtype.
  std::function<at::Tensor(const data::Batch&)> forward;
};

/// The network of a module holder (torch::nn::Linear, torch::nn::Sequential, one of yours). Its
/// forward is called with the batch's input, and with the lengths, too, if it takes two tensors and
/// the batch has lengths. A forward that takes two tensors and never one always gets both; the
/// lengths are undefined if the batch has none.
template <class Holder>
Network network(Holder model) {
  Network result;
  result.module = model.ptr();
  result.forward = [model](const data::Batch& batch) mutable -> at::Tensor {
    constexpr bool takes_one = requires { model->forward(batch.input); };
    constexpr bool takes_two = requires { model->forward(batch.input, batch.lengths); };
    if constexpr (takes_two) {
      if (!takes_one || batch.lengths.defined()) return model->forward(batch.input, batch.lengths);
    }
    if constexpr (takes_one || !takes_two) return model->forward(batch.input);
  };
  return result;
}

}  // namespace demi::train
