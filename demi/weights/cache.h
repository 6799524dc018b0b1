#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_map>

#include "demi/weights/low_copy.h"
#include "demi/weights/weights.h"

// Where copies live: in one table for the process (owned parameters), and in one table for each
// thread (its region).
namespace demi::weights {

struct Owned {
  at::Tensor parameter;  // held, so that the key is never reused
  int owners = 0;
  Copies copies;
};

using WeakLeaf = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

struct RegionEntry {
  WeakLeaf leaf;  // held weakly, so that the key is never reused
  Copies copies;
};

/// Under cache_mutex(). Never destroyed, since tensors may outlive static objects.
std::unordered_map<const c10::TensorImpl*, Owned>& owned();

/// Of this thread.
struct Region {
  int depth = 0;
  std::unordered_map<const c10::TensorImpl*, RegionEntry> entries;
  std::size_t sweep_at =
      64;  // entries of leaves that died inside the region go when there are so many
  ~Region();
  void clear();
  void sweep();
};
Region& region();

/// Hooks are used for copies that live across regions, and wherever they are free.
bool uses_hooks();

/// Destroys the copies under the lock, and the tensors that they held (which may run anybody's
/// code) outside of it.
void discard(std::vector<LowCopy>&& copies);

}  // namespace demi::weights
