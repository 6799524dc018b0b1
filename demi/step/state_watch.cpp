#include "demi/step/state_watch.h"

#include <typeinfo>

namespace demi::optim {
namespace {

/// The tensor's storage; null for an undefined tensor and for one that has none (sparse).
c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  const at::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return impl.has_storage() ? impl.unsafe_storage().unsafeGetStorageImpl() : nullptr;
}

c10::intrusive_ptr<c10::StorageImpl> held(c10::StorageImpl* storage) {
  if (storage == nullptr) return {};
  return c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage);
}

/// Tensors of a state besides the rule's (step, master, remainder). A rule may have any number.
constexpr std::size_t kOthers = 3;

}  // namespace

StateWatch::Seen::Seen(const at::Tensor& tensor) : storage(held(storage_of(tensor))) {
  if (storage._unsafe_get_target() == nullptr) return;
  offset = tensor.storage_offset();
  elements = tensor.numel();
  dtype = tensor.scalar_type();
  is_contiguous = tensor.is_contiguous();
}

bool StateWatch::Seen::is(const at::Tensor& tensor) const {
  const c10::StorageImpl* now = storage_of(tensor);
  if (now != storage._unsafe_get_target()) return false;
  if (now == nullptr) return !tensor.defined();
  return tensor.storage_offset() == offset && tensor.numel() == elements &&
         tensor.scalar_type() == dtype && tensor.is_contiguous() == is_contiguous;
}

StateWatch::Range StateWatch::add(const ParamState& state) {
  const std::size_t begin = seen_.size();
  for (const at::Tensor* tensor : {&state.step, &state.master, &state.remainder})
    seen_.emplace_back(*tensor);
  for (const auto& [name, tensor] : state.of_rule_) seen_.emplace_back(tensor);
  return {begin, seen_.size() - begin};
}

bool StateWatch::is_unchanged(Range range, const torch::optim::OptimizerParamState& of) const {
  if (typeid(of) != typeid(ParamState)) return false;
  const auto& state = static_cast<const ParamState&>(of);
  if (range.count != state.of_rule_.size() + kOthers) return false;
  const Seen* seen = seen_.data() + range.begin;
  if (!seen[0].is(state.step) || !seen[1].is(state.master) || !seen[2].is(state.remainder))
    return false;
  seen += kOthers;
  for (const auto& [name, tensor] : state.of_rule_)
    if (!(seen++)->is(tensor)) return false;
  return true;
}

}  // namespace demi::optim
