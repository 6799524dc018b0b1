#include "demi/batch_norm/synchronised_layers.h"

#include <algorithm>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

namespace demi::batch_norm {
namespace {

// A weak reference keeps the address of a layer that has gone from being used again.
struct Layer {
  c10::weak_intrusive_ptr<at::TensorImpl> running_mean;
  ProcessGroup* group;
};

struct Layers {
  std::shared_mutex mutex;
  std::unordered_map<const at::TensorImpl*, Layer> all;
};

// Never destroyed: threads may outlive static objects.
Layers& layers() {
  static auto* const all = new Layers;
  return *all;
}

}  // namespace

bool synchronise(const at::Tensor& running_mean, ProcessGroup& group) {
  const std::unique_lock lock(layers().mutex);
  auto& all = layers().all;
  std::erase_if(all, [](const auto& one) { return one.second.running_mean.expired(); });
  const auto [layer, is_added] = all.try_emplace(
      running_mean.unsafeGetTensorImpl(),
      Layer{c10::weak_intrusive_ptr<at::TensorImpl>(running_mean.getIntrusivePtr()), &group});
  return std::exchange(layer->second.group, &group) != &group || is_added;
}

ProcessGroup* group_of(const at::Tensor& running_mean) {
  const std::shared_lock lock(layers().mutex);
  const auto found = layers().all.find(running_mean.unsafeGetTensorImpl());
  return found == layers().all.end() ? nullptr : found->second.group;
}

bool has_layers(const ProcessGroup& group) {
  const std::shared_lock lock(layers().mutex);
  return std::ranges::any_of(layers().all, [&](const auto& one) {
    return one.second.group == &group && !one.second.running_mean.expired();
  });
}

void forget_layers_of(const ProcessGroup& group) {
  const std::unique_lock lock(layers().mutex);
  std::erase_if(layers().all, [&](const auto& one) { return one.second.group == &group; });
}

}  // namespace demi::batch_norm
