#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "demi/tensor/version.h"
#include "demi/weights/alias.h"
#include "demi/weights/mutation_hook.h"
#include "demi/weights/streams.h"

namespace demi::weights {

/// The memory that a captured step writes for one parameter in each replay of its graph, without
/// the host's knowledge, or that a graph reads. Lives as long as the StepTargets that was captured,
/// or the RecordedCopies, and holds the copies.
struct CapturedStep {
  const void* parameter;           // its data pointer
  std::vector<at::Tensor> copies;  // one for each dtype
  bool writes = true;              // the parameter, too: copies of other dtypes are then stale
};
using CapturedSteps = std::vector<std::weak_ptr<const CapturedStep>>;

/// The memory in which a copy of `leaf` in `dtype` may be: any (empty), none (an undefined tensor),
/// or the memory that every captured step over the leaf's data refreshes and graphs read. A copy in
/// other memory would be out of date after a replay and still count as valid. Forgets steps that
/// are gone. Call with the exclusive lock.
std::optional<at::Tensor> memory_for(CapturedSteps& steps, const at::Tensor& leaf,
                                     c10::ScalarType dtype);

/// Whether the copy has sizes and strides of the leaf, so that a step can write both element by
/// element.
bool fits(const at::Tensor& copy, const at::Tensor& leaf);

/// The counters that stats() reads.
struct Counters {
  std::atomic<std::int64_t> casts{0};
  std::atomic<std::int64_t> copies{0};
  std::atomic<std::int64_t> bytes{0};
  std::atomic<std::int64_t> capacity;
};
Counters& counters();

/// Counts a copy and its bytes for as long as it lives.
class Footprint {
 public:
  explicit Footprint(std::int64_t bytes);
  ~Footprint();
  Footprint(Footprint&& other) noexcept;
  Footprint& operator=(Footprint&& other) noexcept;
  std::int64_t bytes() const { return bytes_; }

 private:
  std::int64_t bytes_;
};

/// The state of a leaf at the time when something was made of its values. Read and changed under
/// cache_mutex().
struct LeafState {
  /// Empty only if hooks are not used (Mode::region on LibTorch 2.11).
  std::shared_ptr<StorageMark> mark;
  std::uint64_t epoch;   // of the mark
  std::int64_t version;  // -1 for an inference tensor, which has none
  const void* data;      // of the storage
  /// While this weak pointer lives, no other storage gets the address.
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  std::int64_t storage_offset;

  /// Whether nothing has written to the leaf since, nor moved it. Call with the shared lock.
  bool is_of(const c10::TensorImpl& leaf) const {
    const c10::StorageImpl* now = leaf.unsafe_storage().unsafeGetStorageImpl();
    if (mark && !(mark->intact(now) && mark->epoch() == epoch)) return false;
    return storage._unsafe_get_target() == now && tensor::version_of(leaf) == version &&
           now->data() == data && leaf.storage_offset() == storage_offset;
  }
};

/// The state of the leaf now. Hooks its storage, if `hooks`. Empty if nothing would report a write.
/// Call with the exclusive lock.
std::optional<LeafState> state_of(const at::Tensor& leaf, bool hooks);

/// One low precision copy of one FP32 leaf, and the state of the leaf for which it is valid. Made,
/// changed and destroyed with the exclusive lock of cache_mutex(), read with the shared one.
struct LowCopy : LeafState {
  c10::ScalarType dtype;
  at::Tensor low;   // sizes and strides of the leaf; not part of any graph
  Aliases aliases;  // same storage, gradient edge to the leaf; empty until a graph needs them
  std::int64_t low_version;  // of low: changes if a view of it that an op returned is written to
  bool in_step;              // between begin() and finish() of a StepTargets
  ReadyOn ready;             // the streams that may use it
  Footprint footprint;
};

/// The rule of validity: nothing that the copy depends on has changed. Call with the shared lock.
/// Inline, because every op on a weight calls it.
inline bool is_current(const LowCopy& copy, const c10::TensorImpl& leaf) {
  const c10::TensorImpl& low = *copy.low.unsafeGetTensorImpl();
  return copy.is_of(leaf) && tensor::version_of(low) == copy.low_version &&
         tensor::same(leaf.sizes(), low.sizes()) && tensor::same(leaf.strides(), low.strides());
}

/// A copy of the leaf without its values: hooks the storage and records the leaf's state before the
/// cast, so that a write during the cast is noticed. Empty if there can be no copy: the leaf is not
/// dense, its storage cannot be hooked, or the capacity is used up. The copy that it `replaces`
/// (may be null) does not count towards the capacity. Call with the exclusive lock.
std::optional<LowCopy> announce_copy(const at::Tensor& leaf, c10::ScalarType dtype, bool hooks,
                                     const LowCopy* replaces);

/// Casts the leaf for an announced copy, into `memory` (sizes and strides of the leaf) if that is
/// defined. Call without any lock, because an observer of the cast may use weights itself. False if
/// the cast gave other strides.
bool fill(LowCopy& copy, const at::Tensor& leaf, const at::Tensor& memory);

/// Makes the copy valid again after a step wrote leaf and copy. Call with the exclusive lock.
void renew(LowCopy& copy, const at::Tensor& leaf);

/// The copies of one leaf, by dtype; two at most in practice.
using Copies = std::vector<LowCopy>;
inline LowCopy* find(Copies& copies, c10::ScalarType dtype) {
  for (auto& copy : copies)
    if (copy.dtype == dtype) return &copy;
  return nullptr;
}

}  // namespace demi::weights
