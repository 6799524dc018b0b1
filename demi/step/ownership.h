#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "demi/core/export.h"

namespace demi::optim {

class Optimizer;

/// Gradients that backward has brought to a parameter so far.
using Arrivals = std::shared_ptr<std::atomic<std::uint64_t>>;

/// One optimizer's ownership of one parameter. While it lasts, low precision copies of the
/// parameter are kept across regions, and .grad has the dtype that backward gives it: 16 bits if
/// the weight was used in 16 bits. A second backward before the step promotes such a .grad to fp32
/// first, so that sums are made in fp32. When the last owner goes, a 16-bit .grad of an fp32
/// parameter becomes fp32.
class Ownership {
 public:
  Ownership(const at::Tensor& parameter, Optimizer& owner, bool low_precision_grad);
  ~Ownership();
  Ownership(const Ownership&) = delete;
  Ownership& operator=(const Ownership&) = delete;

  const at::Tensor& parameter() const { return parameter_; }
  const Arrivals& arrivals() const { return arrivals_; }

 private:
  at::Tensor parameter_;
  Optimizer& owner_;
  Arrivals arrivals_ = std::make_shared<std::atomic<std::uint64_t>>(0);
  std::optional<unsigned> hook_;
  bool low_precision_grad_;
};

struct Owners {
  Optimizer* last = nullptr;  // made last
  int count = 0;
};

/// demi optimizers that own the parameter. From any thread.
DEMI_API Owners owners_of(const at::Tensor& parameter);

}  // namespace demi::optim
