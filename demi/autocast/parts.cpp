#include "demi/autocast/parts.h"

#include <mutex>
#include <shared_mutex>
#include <unordered_map>

namespace demi {
namespace {

struct Mark {
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>
      parameter;  // held weakly: the key is never reused
  c10::ScalarType dtype;
};

// Never destroyed: kernels may run in threads that outlive static objects.
struct Marks {
  std::shared_mutex mutex;
  std::unordered_map<const c10::TensorImpl*, Mark> by_parameter;
};

Marks& marks() {
  static auto* all = new Marks();
  return *all;
}

// Under the lock.
void forget_dead(Marks& all) {
  std::erase_if(all.by_parameter,
                [](const auto& entry) { return entry.second.parameter.expired(); });
  marked_parameters = static_cast<int>(all.by_parameter.size());
}

}  // namespace

void mark_part(const at::Tensor& parameter, c10::ScalarType dtype) {
  auto& all = marks();
  const std::unique_lock lock(all.mutex);
  all.by_parameter.insert_or_assign(
      parameter.unsafeGetTensorImpl(),
      Mark{decltype(Mark::parameter)(parameter.getIntrusivePtr()), dtype});
  marked_parameters = static_cast<int>(all.by_parameter.size());
}

void unmark_part(const at::Tensor& parameter) {
  auto& all = marks();
  const std::unique_lock lock(all.mutex);
  all.by_parameter.erase(parameter.unsafeGetTensorImpl());
  marked_parameters = static_cast<int>(all.by_parameter.size());
}

void forget_dead_parts() {
  auto& all = marks();
  const std::unique_lock lock(all.mutex);
  forget_dead(all);
}

int count_marked_parameters() { return marked_parameters; }

std::optional<c10::ScalarType> dtype_of_part(const at::Tensor& tensor) {
  auto& all = marks();
  const std::shared_lock lock(all.mutex);
  auto found = all.by_parameter.find(tensor.unsafeGetTensorImpl());
  if (found == all.by_parameter.end() && tensor.is_view())
    found = all.by_parameter.find(tensor._base().unsafeGetTensorImpl());
  if (found == all.by_parameter.end()) return std::nullopt;
  return found->second.dtype;
}

}  // namespace demi
