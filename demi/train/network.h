#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string_view>
#include <type_traits>

#include "demi/core/export.h"
#include "demi/data/loader.h"

namespace torch::nn {
class SequentialImpl;
}

namespace demi::train {

/// The cross entropy of a batch as a network computes it.
struct OwnLoss {
  at::Tensor mean;   ///< Over the targets that are not kIgnoredClass: one number, on a graph.
  at::Tensor right;  ///< Right answers, as right_ones(). Undefined: no accuracy.
};

/// A model of any type, as the trainer uses it: its module, and a function that computes its output
/// for a batch.
struct Network {
  std::shared_ptr<torch::nn::Module> module;  // its parameters are trained, its mode is set
  /// Logits or predictions, in any dtype.
  std::function<at::Tensor(const data::Batch&)> forward;
  /// Optional, for logits that are too many to be held at once, such as those of a vocabulary
  /// (demi::linear_cross_entropy): their cross entropy with the batch's classes. Training,
  /// evaluation and measurements call it, in the region, in place of `forward` if the loss is
  /// Loss::cross_entropy and nothing else reads the output: no Metric, no per_class, no
  /// gradient_penalty.
  std::function<OwnLoss(const data::Batch&, double label_smoothing)> loss = {};
};

/// Throws UsageError with `where` for a network without a module, or without a forward function if
/// one is needed.
DEMI_API void check(const Network& network, std::string_view where, bool needs_forward = true);

/// The network of a module holder (torch::nn::Linear, torch::nn::Sequential, one of yours). Its
/// forward is called with the batch's input, and with the lengths, too, if it takes two tensors and
/// the batch has lengths. A forward that takes two tensors and never one always gets both; the
/// lengths are undefined if the batch has none.
/// torch::nn::Sequential, whose forward takes whatever it is given, gets the input alone.
template <class Holder>
Network network(Holder model) {
  Network result;
  result.module = model.ptr();
  result.forward = [model](const data::Batch& batch) mutable -> at::Tensor {
    constexpr bool takes_one = requires { model->forward(batch.input); };
    using Module = std::remove_reference_t<decltype(*model)>;
    constexpr bool takes_any = std::is_base_of_v<torch::nn::SequentialImpl, Module>;
    constexpr bool takes_two = !takes_any && requires {
      model->forward(batch.input, batch.lengths);
    };
    if constexpr (takes_two) {
      if (!takes_one || batch.lengths.defined()) return model->forward(batch.input, batch.lengths);
    }
    if constexpr (takes_one || !takes_two) return model->forward(batch.input);
  };
  return result;
}

}  // namespace demi::train
