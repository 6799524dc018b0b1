#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <vector>

namespace demi {

/// The gradients of one optimizer as they stood when GradScaler had looked at them. Where two
/// optimizers hold one parameter, its gradient must not be divided by the scale twice.
class SeenGradients {
 public:
  SeenGradients() = default;
  /// `in_place`: those that are not of 16 bits were divided; those of a torch::optim optimizer
  /// always are, whatever their dtype.
  SeenGradients(torch::optim::Optimizer& optimizer, bool in_place);

  /// Whether one of `later`, about to be looked at, is one of these, unchanged, and would be
  /// divided a second time. `pending`: the optimizer of these has not stepped yet, and divides in
  /// its step what was not divided in place.
  bool would_be_divided_again(const SeenGradients& later, bool pending) const;

 private:
  struct Seen {
    const at::TensorImpl* parameter;
    const at::TensorImpl* gradient;
    std::int64_t version;
    bool divided;
  };
  std::vector<Seen> all_;
};

}  // namespace demi
