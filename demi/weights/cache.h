#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "demi/weights/inherited_state.h"
#include "demi/weights/low_copy.h"
#include "demi/weights/weights.h"

// The tables of copies: one for the process (owned parameters), and one for each thread (its
// region).
namespace demi::weights {

/// What derived() keeps of one parameter under one key.
struct DerivedTensors {
  std::uint64_t key;
  LeafState made_of;
  c10::DimVector sizes, strides;  // of the parameter
  std::vector<at::Tensor> tensors;
  ReadyOn ready;
  Footprint footprint;
};

/// A parameter that is owned, with its copies and what else is made of it.
struct OwnedParameter {
  at::Tensor parameter;  // held, so that its address is never reused as a key
  int owners = 0;        // calls of own() less those of disown()
  Copies copies;
  CapturedSteps captured;
  std::vector<DerivedTensors> derived;
};

using WeakLeaf = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

/// A leaf that was used in a region, with its copies.
struct RegionEntry {
  WeakLeaf leaf;  // weak, but keeps its address from being reused as a key
  Copies copies = {};
  bool used = false;  // in this region: a frozen leaf gets a copy at its second use
};

/// The copies of owned parameters, by leaf. Call with cache_mutex() locked. Never destroyed,
/// because tensors may outlive static objects.
std::unordered_map<const c10::TensorImpl*, OwnedParameter>& owned();

/// Changes whenever a copy of an owned parameter gets another address; a step changes none. Guarded
/// by cache_mutex().
inline constinit std::uint64_t owned_generation = 0;

/// The addresses at which a thread found copies last. Saves the search of the tables; the validity
/// test is made all the same. An address is used only while the table's generation is unchanged, so
/// the copy there is alive and belongs to the leaf.
class Memo {
 public:
  /// The copy, or null if this memo does not know it. Call with the shared lock.
  LowCopy* find(const c10::TensorImpl* leaf, c10::ScalarType dtype, std::uint64_t generation) {
    const Place& place = places_[slot(leaf, dtype)];
    const bool known = place.leaf == leaf && place.dtype == dtype && place.generation == generation;
    return known ? place.copy : nullptr;
  }
  void note(const c10::TensorImpl* leaf, LowCopy* copy, std::uint64_t generation) {
    places_[slot(leaf, copy->dtype)] = {leaf, copy, generation, copy->dtype};
  }

 private:
  struct Place {
    const c10::TensorImpl* leaf = nullptr;
    LowCopy* copy = nullptr;
    std::uint64_t generation = 0;
    c10::ScalarType dtype = c10::ScalarType::Undefined;
  };
  static constexpr std::size_t kPlaces = 256;
  static std::size_t slot(const c10::TensorImpl* leaf, c10::ScalarType dtype) {
    const auto address = reinterpret_cast<std::uintptr_t>(leaf);
    return ((address >> 6) ^ (address >> 14) ^ static_cast<std::size_t>(dtype)) % kPlaces;
  }
  std::array<Place, kPlaces> places_;
};

/// The copies of a thread's region. They are on the heap, because static TLS has to fit into the
/// 1,664 bytes that all libraries loaded by dlopen share.
struct Region {
  int depth = 0;
  std::unordered_map<const c10::TensorImpl*, RegionEntry> entries;
  std::uint64_t generation = 0;           // of `entries`, as owned_generation
  std::shared_ptr<InheritedState> outer;  // the regions that this thread itself inherits
  Memo memo;
  ~Region();
  void clear();
  RegionEntry& entry(const at::Tensor& leaf);
  /// Call before a copy of so many bytes is made: drops copies of dead leaves from time to time.
  void make_room(std::int64_t bytes);

 private:
  /// Drops the copies of leaves that died inside the region.
  void sweep();
  std::size_t sweep_at_ = 64;     // number of entries at which to sweep
  std::int64_t swept_bytes_ = 0;  // of copies that the last sweep left
  std::int64_t bytes_since_ = 0;  // of copies made since
};
Region& make_region();

/// The regions of the threads that work for a thread in a region, one for each. They end when that
/// region has been left and their last work is done.
class WorkersRegions : public InheritedState {
 public:
  Region& of_this_thread();

 private:
  std::mutex mutex_;
  std::unordered_map<std::thread::id, Region> regions_;
};

// One word of static TLS, which is read without a call.
[[gnu::tls_model("initial-exec")]] inline thread_local constinit Region* region_of_this_thread =
    nullptr;

inline Region& region() { return region_of_this_thread ? *region_of_this_thread : make_region(); }

/// The region that this thread works for; `own` if it works for none.
Region& inherited_region(Region& own);
inline Region& region_in_force() {
  Region& own = region();
  return own.depth > 0 ? own : inherited_region(own);
}

/// Whether copies are hooked: if they live across regions, and if a hook costs foreign code
/// nothing.
bool uses_hooks();

/// Destroys the copies with the lock held, and the tensors that they held, whose destructors may
/// run any code, without it.
void discard(std::vector<LowCopy>&& copies);
void discard(std::vector<DerivedTensors>&& derived);

/// Copies that are in no table; discards them at the end of the scope.
struct UnlistedCopies {
  std::vector<LowCopy> copies;
  ~UnlistedCopies() {
    if (!copies.empty()) discard(std::move(copies));
  }
};

}  // namespace demi::weights
