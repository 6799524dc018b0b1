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

/// What stats() reads.
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

/// One low precision copy of one FP32 leaf, and what has to be unchanged for it to be right. Made,
/// changed and destroyed under the exclusive cache_mutex(), read under the shared one.
struct LowCopy {
  c10::ScalarType dtype;
  at::Tensor low;   // sizes and strides of the leaf; not part of any graph
  Aliases aliases;  // the same storage, gradient edge to the leaf; empty until a graph wants them
  std::shared_ptr<StorageMark>
      mark;                  // empty only where hooks are not used (Mode::region on LibTorch 2.11)
  std::uint64_t epoch;       // of the mark
  std::int64_t version;      // of the leaf; -1 for an inference tensor, which has none
  std::int64_t low_version;  // of low: somebody wrote to a view that an op returned
  const void* data;          // of the leaf's storage
  c10::weak_intrusive_ptr<c10::StorageImpl>
      storage;  // of the leaf: while this lives, no other one gets its address
  std::int64_t storage_offset;
  bool in_step = false;  // between begin() and finish() of a StepTargets
  ReadyOn ready;         // the streams that may use it
  Footprint footprint;
};

/// The pure rule: nothing that the copy depends on has changed. Shared lock. Here, since every op
/// on a weight asks.
inline bool is_current(const LowCopy& copy, const c10::TensorImpl& leaf) {
  const c10::StorageImpl* storage = leaf.unsafe_storage().unsafeGetStorageImpl();
  if (copy.mark && !(copy.mark->intact(storage) && copy.mark->epoch() == copy.epoch)) return false;
  if (copy.storage._unsafe_get_target() != storage) return false;
  const c10::TensorImpl& low = *copy.low.unsafeGetTensorImpl();
  return tensor::version_of(leaf) == copy.version && tensor::version_of(low) == copy.low_version &&
         storage->data() == copy.data && leaf.storage_offset() == copy.storage_offset &&
         tensor::same(leaf.sizes(), low.sizes()) && tensor::same(leaf.strides(), low.strides());
}

/// What a copy of the leaf depends on, taken down before the cast, so that a write during it is
/// seen: hooks; `low` is still empty. Empty where there can be no copy: the leaf is not dense, its
/// storage cannot be hooked, or the capacity is used up, in which a copy that it `replaces` (or
/// null) does not count. Exclusive lock.
std::optional<LowCopy> announce_copy(const at::Tensor& leaf, c10::ScalarType dtype, bool hooks,
                                     const LowCopy* replaces);

/// The cast that an announced copy waits for, into `memory` (sizes and strides of the leaf) where
/// that is defined. Without any lock, since an observer of the cast may use weights itself. False
/// where it gave other strides.
bool fill(LowCopy& copy, const at::Tensor& leaf, const at::Tensor& memory);

/// After a step wrote leaf and copy: current again. Exclusive lock.
void renew(LowCopy& copy, const at::Tensor& leaf);

/// Copies of one leaf; two low precision dtypes at most in practice.
using Copies = std::vector<LowCopy>;
inline LowCopy* find(Copies& copies, c10::ScalarType dtype) {
  for (auto& copy : copies)
    if (copy.dtype == dtype) return &copy;
  return nullptr;
}

}  // namespace demi::weights
