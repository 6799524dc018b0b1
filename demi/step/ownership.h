#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "demi/core/export.h"

namespace demi::optim {

class BeforeSums;
class Optimizer;

/// Gradients that backward has brought to a parameter's .grad so far.
using Arrivals = std::shared_ptr<std::atomic<std::uint64_t>>;

/// One optimizer's ownership of one parameter. While it lasts, low precision copies of the
/// parameter are kept across regions.
///
/// While any owner wants low precision gradients, .grad of an fp32 parameter has the dtype that
/// backward gives it: 16 bits if the weight was used in 16 bits. A second backward before the step
/// promotes such a .grad to fp32 first, so that sums are made in fp32; and where a tensor hook or
/// torch::autograd::grad looks at the gradient, that becomes fp32 first, too. When the last such
/// owner goes, a 16-bit .grad becomes fp32.
class Ownership {
 public:
  Ownership(const at::Tensor& parameter, Optimizer& owner, bool low_precision_grad);
  ~Ownership();
  Ownership(const Ownership&) = delete;
  Ownership& operator=(const Ownership&) = delete;

  void set_low_precision_grad(bool on);

  /// The owner has moved to another address. Called from the owner's thread.
  void move_to(Optimizer& owner);

  const at::Tensor& parameter() const { return parameter_; }
  const Arrivals& arrivals() const { return arrivals_; }

 private:
  at::Tensor parameter_;
  Optimizer* owner_;
  Arrivals arrivals_ = std::make_shared<std::atomic<std::uint64_t>>(0);
  const BeforeSums* hook_ = nullptr;  // the parameter's; null: none
  bool low_precision_grad_ = false;
};

struct Owners {
  Optimizer* last = nullptr;  // made last
  int count = 0;
};

/// The demi optimizers that own the parameter. Any thread.
DEMI_API Owners owners_of(const at::Tensor& parameter);

}  // namespace demi::optim
