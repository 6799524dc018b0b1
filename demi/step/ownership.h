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

/// One optimizer's hold on one parameter: its low precision copies are kept across regions, and its
/// .grad has the dtype that backward gives it: 16-bit where the weight was used in 16 bits. A
/// second backward before the step first promotes such a .grad to fp32, so that sums are made in
/// fp32. Undone when the last such hold goes; a 16-bit .grad of an fp32 parameter is fp32 from then
/// on.
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
  Optimizer* last = nullptr;  // the one made last
  int count = 0;
};

/// demi optimizers that hold the parameter. From any thread.
DEMI_API Owners owners_of(const at::Tensor& parameter);

}  // namespace demi::optim
