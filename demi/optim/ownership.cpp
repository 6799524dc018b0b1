#include "demi/optim/ownership.h"

#include <torch/types.h>

#include <mutex>
#include <unordered_map>
#include <vector>

#include "demi/weights/weights.h"

namespace demi::optim {
namespace {

struct Registry {
  std::mutex mutex;
  std::unordered_map<const at::TensorImpl*, std::vector<Optimizer*>> owners;
};

Registry& registry() {
  static Registry* all = new Registry;  // outlives every static optimizer
  return *all;
}

bool is_16_bit(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
}

void promote(at::Tensor& gradient) {
  if (gradient.defined() && is_16_bit(gradient)) gradient = gradient.to(at::kFloat);
}

/// Runs before AccumulateGrad adds to .grad. The hook lives in the parameter, so the parameter
/// lives.
unsigned promote_before_sums(const at::Tensor& parameter) {
  at::TensorImpl* impl = parameter.unsafeGetTensorImpl();
  const bool required = parameter.requires_grad();
  if (!required) parameter.set_requires_grad(true);
  const unsigned hook = parameter.register_hook([impl](const at::Tensor&) {
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
    registry().owners[parameter_.unsafeGetTensorImpl()].push_back(&owner_);
  }
  weights::own(parameter_);
  if (!low_precision_grad_) return;
  parameter_.set_grad_dtype(std::nullopt);
  hook_ = promote_before_sums(parameter_);
}

Ownership::~Ownership() {
  if (low_precision_grad_) parameter_.remove_hook(hook_);
  weights::disown(parameter_);
  const std::lock_guard lock(registry().mutex);
  auto& owners = registry().owners[parameter_.unsafeGetTensorImpl()];
  std::erase(owners, &owner_);
  if (!owners.empty()) return;
  registry().owners.erase(parameter_.unsafeGetTensorImpl());
  if (!low_precision_grad_) return;
  const at::NoGradGuard no_grad;
  promote(parameter_.mutable_grad());
  parameter_.set_grad_dtype(parameter_.scalar_type());
}

Owners owners_of(const at::Tensor& parameter) {
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().owners.find(parameter.unsafeGetTensorImpl());
  if (found == registry().owners.end()) return {};
  return {found->second.back(), static_cast<int>(found->second.size())};
}

}  // namespace demi::optim
