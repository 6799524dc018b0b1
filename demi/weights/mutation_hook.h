#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/core/impl/COWDeleter.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <memory>

#include "demi/core/export.h"
#include "demi/weights/cache_mutex.h"

/// Notices every write that LibTorch makes to a storage. The version counter alone misses writes
/// through `.data()`, `_fused_sgd_`, raw pointers and other tensors on the storage; but every
/// mutable access passes a check in StorageImpl.
///
/// There are two forms, chosen by what LibTorch's headers offer. LibTorch 2.15: a one-shot
/// materializer. LibTorch 2.11: a copy-on-write context with one reference around the data pointer.
/// With the latter, concurrent mutable access aborts and `data_ptr()` inside at::parallel_for
/// throws, so it is used only if the user asks for it.
namespace demi::weights {

template <class S>
concept HasMaterializer = requires(S& s) {
  s.set_materializer(static_cast<void (*)(S*)>(nullptr));
  s.clear_materializer();
  s.has_materializer();
};

/// Whether the hook that returned `identity` is still in place.
template <class S>
bool is_hooked(const S& storage, const void* identity) {
  const at::DataPtr& pointer = storage.data_ptr();
  const bool is_cow = pointer.get_deleter() == &c10::impl::cow::cow_deleter;
  if constexpr (HasMaterializer<S>)
    return storage.has_materializer() && pointer.get() == identity && !is_cow;
  else
    return is_cow && pointer.get_context() == identity;
}

/// Whether the hook costs foreign code nothing: true for the materializer.
DEMI_API bool hook_is_free();

/// The result of the start-up test: a write through `.data()` on a scratch tensor fires the hook,
/// and reading does not.
DEMI_API bool hook_works();

/// The hook on one storage, shared by all copies made from it. The destructor of the last reference
/// removes the hook.
class StorageMark {
 public:
  /// The mark of this storage, hooked. Empty if the storage cannot be hooked: it is copy-on-write,
  /// or (2.11) its memory is foreign. If the storage was written since it was last hooked, a new
  /// epoch begins, which makes all copies of earlier epochs stale, also those of other tensors on
  /// the storage.
  static std::shared_ptr<StorageMark> hooked(c10::StorageImpl& storage);

  ~StorageMark();
  StorageMark(const StorageMark&) = delete;
  StorageMark& operator=(const StorageMark&) = delete;

  /// Whether nothing wrote since hooked(), and `storage` is the one that was hooked.
  bool intact(const c10::StorageImpl* storage) const {
    return storage == storage_ && identity_ && is_hooked(*storage_, identity_);
  }

  /// Hooks this mark's storage again. False if `storage` is another one, or cannot be hooked any
  /// more.
  bool rehook(const c10::StorageImpl& storage);

  std::uint64_t epoch() const { return epoch_; }

  /// Makes all copies of this storage stale, as a write does.
  static void invalidate(c10::StorageImpl& storage);

  explicit StorageMark(c10::StorageImpl& storage);  // for hooked() only

 private:
  bool hook();
  void unhook();

  c10::StorageImpl* storage_;  // its address is not reused while weak_ is held
  c10::weak_intrusive_ptr<c10::StorageImpl> weak_;
  /// The hooked data address, or the copy-on-write context (2.11).
  const void* identity_ = nullptr;
  std::uint64_t epoch_ = 0;
};

}  // namespace demi::weights
