#include "demi/step/ownership.h"

#include <torch/types.h>

#include <mutex>
#include <unordered_map>
#include <vector>

#include "demi/tensor/dtype.h"
#include "demi/weights/weights.h"

namespace demi::optim {
namespace {

struct Holders {
  std::vector<Optimizer*> owners;
  int low_precision = 0;  // number of owners that leave .grad in 16 bits
};

struct Registry {
  std::mutex mutex;
  std::unordered_map<const at::TensorImpl*, Holders> holders;
};

Registry& registry() {
  static Registry* all = new Registry;  // outlives every static optimizer
  return *all;
}

void promote(at::Tensor& gradient) {
  if (gradient.defined() && tensor::is_16_bit(gradient.scalar_type()))
    gradient = gradient.to(at::kFloat);
}

/// The hook runs before AccumulateGrad adds to .grad. It belongs to the parameter, which is alive
/// then.
unsigned hook_before_sums(const at::Tensor& parameter, const Arrivals& arrivals, bool promotes) {
  at::TensorImpl* impl = parameter.unsafeGetTensorImpl();
  const bool required = parameter.requires_grad();
  if (!required) parameter.set_requires_grad(true);
  const unsigned hook = parameter.register_hook([impl, arrivals, promotes](const at::Tensor&) {
    arrivals->fetch_add(1, std::memory_order_relaxed);
    if (!promotes) return;
    const at::Tensor self(c10::intrusive_ptr<at::TensorImpl>::reclaim_copy(impl));
    const at::NoGradGuard no_grad;
    if (self.scalar_type() == at::kFloat) promote(self.mutable_grad());
  });
  if (!required) parameter.set_requires_grad(false);
  return hook;
}

}  // namespace

Ownership::Ownership(const at::Tensor& parameter, Optimizer& owner, bool low_precision_grad)
    : parameter_(parameter),
      owner_(owner),
      low_precision_grad_(low_precision_grad && parameter.is_leaf() &&
                          parameter.scalar_type() == at::kFloat) {
  {
    const std::lock_guard lock(registry().mutex);
    Holders& holders = registry().holders[parameter_.unsafeGetTensorImpl()];
    holders.owners.push_back(&owner_);
    holders.low_precision += low_precision_grad_;
  }
  weights::own(parameter_);
  if (low_precision_grad_) parameter_.set_grad_dtype(std::nullopt);
  if (parameter_.is_leaf()) hook_ = hook_before_sums(parameter_, arrivals_, low_precision_grad_);
}

Ownership::~Ownership() {
  if (hook_) parameter_.remove_hook(*hook_);
  weights::disown(parameter_);
  const std::lock_guard lock(registry().mutex);
  Holders& holders = registry().holders[parameter_.unsafeGetTensorImpl()];
  std::erase(holders.owners, &owner_);
  holders.low_precision -= low_precision_grad_;
  const bool closes = low_precision_grad_ && holders.low_precision == 0;
  if (holders.owners.empty()) registry().holders.erase(parameter_.unsafeGetTensorImpl());
  if (!closes) return;
  const at::NoGradGuard no_grad;
  promote(parameter_.mutable_grad());
  parameter_.set_grad_dtype(parameter_.scalar_type());
}

Owners owners_of(const at::Tensor& parameter) {
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().holders.find(parameter.unsafeGetTensorImpl());
  if (found == registry().holders.end()) return {};
  const std::vector<Optimizer*>& owners = found->second.owners;
  return {owners.back(), static_cast<int>(owners.size())};
}

}  // namespace demi::optim
