#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <vector>

namespace demi {

/// The gradients of one optimizer as they were when GradScaler had inspected them. If two
/// optimizers hold one parameter, its gradient must not be divided by the scale twice.
class InspectedGradients {
 public:
  InspectedGradients() = default;
  /// `in_place`: gradients that are not of 16 bits were divided. Those of a torch::optim optimizer
  /// always are, in any dtype.
  InspectedGradients(torch::optim::Optimizer& optimizer, bool in_place);

  /// Whether a gradient of `later`, about to be inspected, is one of these, unchanged, and would be
  /// divided a second time. `pending`: the optimizer of these has not stepped yet; its step divides
  /// what was not divided in place.
  bool would_be_divided_again(const InspectedGradients& later, bool pending) const;

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
