#include "demi/step/ownership.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "demi/tensor/dtype.h"
#include "demi/weights/accumulator.h"
#include "demi/weights/weights.h"

namespace demi::optim {
namespace {

namespace autograd = torch::autograd;

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

bool is_narrow(const at::Tensor& gradient) {
  return gradient.defined() && tensor::is_16_bit(gradient.scalar_type());
}

void promote(at::Tensor& gradient) {
  if (is_narrow(gradient)) gradient = gradient.to(at::kFloat);
}

}  // namespace

/// Runs before AccumulateGrad adds to .grad, and before every hook of the user's. It belongs to the
/// parameter, which is alive then.
class BeforeSums final : public autograd::FunctionPreHook {
 public:
  BeforeSums(at::TensorImpl* parameter, Arrivals arrivals)
      : parameter_(parameter), arrivals_(std::move(arrivals)) {}

  autograd::variable_list operator()(const autograd::variable_list& gradients) override {
    auto& meta = *static_cast<autograd::AutogradMeta*>(parameter_->autograd_meta());
    if (!is_captured(meta)) arrivals_->fetch_add(1, std::memory_order_relaxed);
    if (parameter_->dtype() != at::kFloat) return gradients;
    const bool is_asked_for = meta.grad_.defined() && meta.grad_dtype_ == meta.grad_.scalar_type();
    if (!is_asked_for) promote(meta.grad_);
    autograd::variable_list mine = gradients;
    if (meta.allow_grad_dtype_mismatch_ && is_narrow(mine[0]) && is_seen(meta)) promote(mine[0]);
    return mine;
  }

 private:
  /// Whether a hook or torch::autograd::grad gets the gradient.
  static bool is_seen(autograd::AutogradMeta& meta) {
    std::ptrdiff_t unknown = 0;
    for (const auto& hook : meta.hooks_) unknown += !dynamic_cast<const BeforeSums*>(hook.get());
    if (meta.cpp_hooks_list_) {  // which stands for one of them, and is of functions or nothing
      --unknown;
      for (const auto& function : *meta.cpp_hooks_list_)
        if (function) return true;
    }
    return unknown > 0 || is_captured(meta);
  }

  /// torch::autograd::grad gets it, and .grad does not.
  static bool is_captured(autograd::AutogradMeta& meta) {
    const auto* asked_for = autograd::get_current_graph_task_exec_info();
    if (!asked_for || asked_for->empty()) return false;
    const std::lock_guard lock(meta.mutex_);
    const auto accumulator = meta.grad_accumulator_.lock();  // runs this hook, so it lives on
    return accumulator && weights::is_captured(*accumulator);
  }

  at::TensorImpl* parameter_;
  Arrivals arrivals_;
};

Ownership::Ownership(const at::Tensor& parameter, Optimizer& owner, bool low_precision_grad)
    : parameter_(parameter), owner_(&owner) {
  {
    const std::lock_guard lock(registry().mutex);
    registry().holders[parameter_.unsafeGetTensorImpl()].owners.push_back(owner_);
  }
  weights::own(parameter_);
  if (parameter_.is_leaf()) {
    auto hook = std::make_unique<BeforeSums>(parameter_.unsafeGetTensorImpl(), arrivals_);
    hook_ = hook.get();
    auto& meta = *autograd::impl::materialize_autograd_meta(parameter_);
    // The user's list has to be there: the first register_hook() would make it, and drop the
    // present hooks.
    if (!meta.cpp_hooks_list_) autograd::impl::create_cpp_hook(parameter_);
    meta.hooks_.insert(meta.hooks_.begin(), std::move(hook));
  }
  set_low_precision_grad(low_precision_grad);
}

Ownership::~Ownership() {
  set_low_precision_grad(false);
  if (hook_)
    std::erase_if(autograd::impl::hooks(parameter_),
                  [this](const auto& hook) { return hook.get() == hook_; });
  weights::disown(parameter_);
  const std::lock_guard lock(registry().mutex);
  const auto holders = registry().holders.find(parameter_.unsafeGetTensorImpl());
  std::erase(holders->second.owners, owner_);
  if (holders->second.owners.empty()) registry().holders.erase(holders);
}

void Ownership::set_low_precision_grad(bool on) {
  on = on && parameter_.is_leaf() && parameter_.scalar_type() == at::kFloat;
  if (on == low_precision_grad_) return;
  low_precision_grad_ = on;
  const std::lock_guard lock(registry().mutex);
  int& holders = registry().holders[parameter_.unsafeGetTensorImpl()].low_precision;
  holders += on ? 1 : -1;
  if (on && holders == 1) parameter_.set_grad_dtype(std::nullopt);
  if (on || holders > 0) return;
  const at::NoGradGuard no_grad;
  promote(parameter_.mutable_grad());
  parameter_.set_grad_dtype(parameter_.scalar_type());
}

void Ownership::move_to(Optimizer& owner) {
  const std::lock_guard lock(registry().mutex);
  auto& owners = registry().holders.at(parameter_.unsafeGetTensorImpl()).owners;
  std::replace(owners.begin(), owners.end(), owner_, &owner);
  owner_ = &owner;
}

Owners owners_of(const at::Tensor& parameter) {
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().holders.find(parameter.unsafeGetTensorImpl());
  if (found == registry().holders.end()) return {};
  const std::vector<Optimizer*>& owners = found->second.owners;
  return {owners.back(), static_cast<int>(owners.size())};
}

}  // namespace demi::optim
