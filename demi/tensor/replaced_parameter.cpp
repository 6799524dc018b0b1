#include "demi/tensor/replaced_parameter.h"

#include <torch/types.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "demi/tensor/replacement_notice.h"

namespace demi::tensor {
namespace {

using Observers = std::vector<ReplacementObserver*>;

// Never destroyed, because observers may be static objects.
struct Registry {
  std::mutex mutex;
  std::unordered_map<const c10::TensorImpl*, Observers> observers;
  std::vector<void (*)(const Replacement&)> calls;
};

Registry& registry() {
  static auto* all = new Registry;
  return *all;
}

// Called without the lock: an observer may wait for other ranks, which may be threads of this
// process.
Observers observers_of(const at::Tensor& parameter) {
  const std::lock_guard lock(registry().mutex);
  const auto found = registry().observers.find(parameter.unsafeGetTensorImpl());
  return found == registry().observers.end() ? Observers() : found->second;
}

}  // namespace

at::Tensor gathered(const Replacement& replacement, const at::Tensor& of_old,
                    const at::Tensor& fill) {
  if (of_old.scalar_type() == at::kUInt16)  // which at::where does not know
    return gathered(replacement, of_old.view(at::kShort), fill).view(at::kUInt16);
  const at::Tensor rows = replacement.rows.to(of_old.device());
  std::vector<int64_t> each(static_cast<std::size_t>(of_old.dim()), 1);
  each.front() = rows.numel();
  const at::Tensor there = (rows >= 0).view(each), filler = fill.to(of_old.options());
  std::vector<int64_t> shape = of_old.sizes().vec();
  shape.front() = rows.numel();
  if (of_old.size(0) == 0) return filler.expand(shape).clone(at::MemoryFormat::Contiguous);
  return at::where(there, of_old.index_select(0, rows.clamp_min(0)), filler);
}

ReplacementObserver::ReplacementObserver(const ReplacementObserver& other) {
  const std::lock_guard lock(registry().mutex);
  for (const c10::TensorImpl* parameter : other.observed_) listen_to(parameter);
}

ReplacementObserver& ReplacementObserver::operator=(const ReplacementObserver& other) {
  if (this == &other) return *this;
  forget();
  const std::lock_guard lock(registry().mutex);
  for (const c10::TensorImpl* parameter : other.observed_) listen_to(parameter);
  return *this;
}

ReplacementObserver::~ReplacementObserver() { forget(); }

void ReplacementObserver::forget() {
  const std::lock_guard lock(registry().mutex);
  for (const c10::TensorImpl* parameter : observed_) {
    const auto found = registry().observers.find(parameter);
    std::erase(found->second, this);
    if (found->second.empty()) registry().observers.erase(found);
  }
  observed_.clear();
}

void ReplacementObserver::observe(const at::Tensor& parameter) {
  const std::lock_guard lock(registry().mutex);
  listen_to(parameter.unsafeGetTensorImpl());
}

// The caller holds the lock.
void ReplacementObserver::listen_to(const c10::TensorImpl* parameter) {
  Observers& there = registry().observers[parameter];
  if (std::ranges::find(there, this) != there.end()) return;
  there.push_back(this);
  observed_.push_back(parameter);
}

void require_replaceable(const Replacement& replacement) {
  for (const ReplacementObserver* one : observers_of(replacement.old))
    one->require_replaceable(replacement);
}

void tell_of(const Replacement& replacement) {
  const Observers observers = observers_of(replacement.old);
  for (ReplacementObserver* one : observers) one->replace(replacement);
  std::vector<void (*)(const Replacement&)> calls;
  {
    const std::lock_guard lock(registry().mutex);
    for (ReplacementObserver* one : observers) {
      std::erase(one->observed_, replacement.old.unsafeGetTensorImpl());
      one->listen_to(replacement.by.unsafeGetTensorImpl());
    }
    registry().observers.erase(replacement.old.unsafeGetTensorImpl());
    calls = registry().calls;
  }
  for (const auto call : calls) call(replacement);
}

void on_each_replacement(void (*call)(const Replacement&)) {
  const std::lock_guard lock(registry().mutex);
  registry().calls.push_back(call);
}

}  // namespace demi::tensor
