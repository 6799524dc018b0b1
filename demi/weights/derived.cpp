#include "demi/weights/derived.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <optional>
#include <utility>

#include "demi/weights/cache.h"

namespace demi::weights {
namespace {

DerivedTensors* find_derived(OwnedParameter& owner, std::uint64_t key) {
  const auto found = std::ranges::find(owner.derived, key, &DerivedTensors::key);
  return found == owner.derived.end() ? nullptr : &*found;
}

// Whether nothing that the tensors depend on has changed. Call with the shared lock.
bool is_current(const DerivedTensors& kept, const c10::TensorImpl& leaf) {
  return kept.made_of.is_of(leaf) && tensor::same(kept.sizes, leaf.sizes()) &&
         tensor::same(kept.strides, leaf.strides());
}

std::vector<at::Tensor> make_outside_of_graphs(
    const std::function<std::vector<at::Tensor>()>& make) {
  const c10::InferenceMode no_inference(false);
  const at::NoGradGuard no_grad;
  return make();
}

std::int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined()) bytes += static_cast<std::int64_t>(tensor.nbytes());
  return bytes;
}

// The tensors that are kept and valid, for the current stream; empty if there are none.
std::vector<at::Tensor> kept_derived(const at::Tensor& parameter, std::uint64_t key,
                                     const CurrentStream& current) {
  const c10::TensorImpl& leaf = *parameter.unsafeGetTensorImpl();
  {
    const Reading lock;
    const auto owner = owned().find(&leaf);
    if (owner == owned().end()) return {};
    const DerivedTensors* kept = find_derived(owner->second, key);
    if (!kept || !is_current(*kept, leaf)) return {};
    if (kept->ready.includes(current)) return kept->tensors;
  }
  const std::unique_lock lock(cache_mutex());
  const auto owner = owned().find(&leaf);
  DerivedTensors* kept = owner == owned().end() ? nullptr : find_derived(owner->second, key);
  if (!kept || !is_current(*kept, leaf)) return {};
  if (kept->ready.includes(current)) return kept->tensors;
  for (const at::Tensor& tensor : kept->tensors) {
    if (!tensor.defined()) continue;
    kept->ready.include(current, tensor);  // waits once, for the first of them
    current.streams().recordDataPtrOnStream(tensor.storage().data_ptr(), current.stream());
  }
  return kept->tensors;
}

/// The leaf's state before anything is made of it, so that a write meanwhile is noticed. Marks are
/// destroyed under the lock.
struct AnnouncedState {
  std::optional<LeafState> state;

  explicit AnnouncedState(const at::Tensor& parameter) {
    const std::unique_lock lock(cache_mutex());
    if (owned().contains(parameter.unsafeGetTensorImpl()))
      state = state_of(parameter, uses_hooks());
  }
  ~AnnouncedState() {
    if (!state) return;
    const std::unique_lock lock(cache_mutex());
    state.reset();
  }
  AnnouncedState(const AnnouncedState&) = delete;
  AnnouncedState& operator=(const AnnouncedState&) = delete;
};

void keep_derived(const at::Tensor& parameter, std::uint64_t key, AnnouncedState& announced,
                  const std::vector<at::Tensor>& tensors, const CurrentStream& current) {
  std::vector<at::Tensor> dropped;  // destroyed without the lock
  const std::int64_t bytes = bytes_of(tensors);
  const std::unique_lock lock(cache_mutex());
  const auto owner = owned().find(parameter.unsafeGetTensorImpl());
  if (owner == owned().end() || !announced.state) return;
  auto& all = owner->second.derived;
  if (DerivedTensors* stale = find_derived(owner->second, key)) {
    dropped = std::move(stale->tensors);
    all.erase(all.begin() + (stale - all.data()));
  }
  if (counters().bytes + bytes > counters().capacity) return;
  all.push_back({key, *std::exchange(announced.state, {}), c10::DimVector(parameter.sizes()),
                 c10::DimVector(parameter.strides()), tensors, ReadyOn(current), Footprint(bytes)});
}

}  // namespace

void discard(std::vector<DerivedTensors>&& derived) {
  std::vector<at::Tensor> held;
  if (derived.empty()) return;
  const std::unique_lock lock(cache_mutex());
  for (auto& one : derived)
    std::move(one.tensors.begin(), one.tensors.end(), std::back_inserter(held));
  derived.clear();
}

std::vector<at::Tensor> derived(const at::Tensor& parameter, std::uint64_t key,
                                const std::function<std::vector<at::Tensor>()>& make) {
  const CurrentStream current(parameter);
  if (mode() != Mode::keep || (current && current.is_captured()))
    return make_outside_of_graphs(make);
  if (auto kept = kept_derived(parameter, key, current); !kept.empty()) return kept;
  AnnouncedState announced(parameter);
  const std::vector<at::Tensor> made = make_outside_of_graphs(make);
  keep_derived(parameter, key, announced, made, current);
  return made;
}

}  // namespace demi::weights
