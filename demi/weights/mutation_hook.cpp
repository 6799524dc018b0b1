#include "demi/weights/mutation_hook.h"

#include <ATen/ops/ones.h>
#include <c10/core/impl/COW.h>
#include <c10/core/impl/COWDeleter.h>
#include <c10/util/ParallelGuard.h>

#include <unordered_map>

namespace demi::weights {
namespace {

namespace cow = c10::impl::cow;

void on_write(c10::StorageImpl*) {}  // its absence afterwards is the message

// The mark that hooking leaves behind, to be compared later; null if the storage cannot be hooked.
template <class S>
const void* hook_storage(S& storage) {
  if constexpr (HasMaterializer<S>) {
    if (storage.has_materializer()) return nullptr;  // copy-on-write or another library's
    storage.set_materializer(&on_write);
    return storage.data();
  } else {
    at::DataPtr& pointer = storage._mutable_data_ptr_no_checks();
    void* data = pointer.get();
    if (cow::is_cow_data_ptr(pointer) || pointer.get_context() != data) return nullptr;
    const auto device = pointer.device();
    auto* context = new cow::COWDeleterContext(pointer.move_context());
    storage.set_data_ptr_noswap(at::DataPtr(data, context, &cow::cow_deleter, device));
    return context;
  }
}

template <class S>
void unhook_storage(S& storage) {
  if constexpr (HasMaterializer<S>) {
    storage.clear_materializer();
  } else {
    storage.mutable_data_ptr();  // the only reference: returns the memory without a copy
  }
}

// Weak: the marks belong to the copies. Never destroyed, since tensors may outlive static objects.
std::unordered_map<const c10::StorageImpl*, std::weak_ptr<StorageMark>>& marks() {
  static auto* map = new std::unordered_map<const c10::StorageImpl*, std::weak_ptr<StorageMark>>();
  return *map;
}

// Runs outside of loops of at::parallel_for, in which the hook must not run, even if the first use
// is within one.
bool self_test() {
  const c10::ParallelGuard not_in_a_loop(false);
  const at::Tensor scratch = at::ones({4});
  auto& storage = *scratch.storage().unsafeGetStorageImpl();
  const void* identity = hook_storage(storage);
  if (!identity) return false;
  const at::Tensor copy = scratch.to(at::kBFloat16);
  const bool reading_is_free = is_hooked(storage, identity);
  const at::Tensor data = scratch.variable_data();
  data.mul_(2);
  return reading_is_free && !is_hooked(storage, identity) && scratch.sum().item<float>() == 8;
}

}  // namespace

bool hook_is_free() { return HasMaterializer<c10::StorageImpl>; }

bool hook_works() {
  static const bool works = self_test();
  return works;
}

std::shared_ptr<StorageMark> StorageMark::hooked(c10::StorageImpl& storage) {
  auto& slot = marks()[&storage];
  auto mark = slot.lock();
  if (!mark) slot = mark = std::make_shared<StorageMark>(storage);
  return mark->rehook(storage) ? mark : nullptr;
}

bool StorageMark::rehook(const c10::StorageImpl& storage) {
  return &storage == storage_ && (intact(&storage) || hook());
}

void StorageMark::invalidate(c10::StorageImpl& storage) {
  const auto found = marks().find(&storage);
  if (found == marks().end()) return;
  if (const auto mark = found->second.lock()) mark->unhook();
}

StorageMark::StorageMark(c10::StorageImpl& storage)
    : storage_(&storage), weak_(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(&storage)) {}

StorageMark::~StorageMark() {
  unhook();
  marks().erase(storage_);
}

bool StorageMark::hook() {
  identity_ = hook_storage(*storage_);
  ++epoch_;
  return identity_ != nullptr;
}

void StorageMark::unhook() {
  const auto alive = weak_.lock();
  if (alive && intact(alive.get())) unhook_storage(*alive);
  identity_ = nullptr;
}

}  // namespace demi::weights
