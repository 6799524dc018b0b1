#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "demi/weights/captured_step.h"
#include "demi/weights/handed_on.h"
#include "demi/weights/low_copy.h"
#include "demi/weights/weights.h"

// Where copies live: in one table for the process (owned parameters), and in one table for each
// thread (its region).
namespace demi::weights {

struct Owned {
  at::Tensor parameter;  // held, so that the key is never reused
  int owners = 0;
  Copies copies;
  CapturedSteps captured;
};

using WeakLeaf = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

struct RegionEntry {
  WeakLeaf leaf;  // held weakly, so that the key is never reused
  Copies copies = {};
  bool used = false;  // before: a frozen leaf has a copy from its second use on
};

/// The copies of owned parameters. Under cache_mutex(). Never destroyed, since tensors may outlive
/// static objects.
std::unordered_map<const c10::TensorImpl*, Owned>& owned();

/// Of the places where those copies stand; a step changes none of them. Under cache_mutex().
inline constinit std::uint64_t owned_generation = 0;

/// Where a thread found copies last: spares it the search of the tables, and nothing of the
/// validity test. A place is trusted while no table changed, so what it points to is alive, and the
/// leaf is the one that the table holds.
class Memo {
 public:
  /// Null where it does not know. Under the shared lock.
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

/// Of this thread. On the heap: what stands in static TLS has to fit into the 1,664 bytes that all
/// libraries loaded by dlopen share.
struct Region {
  int depth = 0;
  std::unordered_map<const c10::TensorImpl*, RegionEntry> entries;
  std::uint64_t generation = 0;     // as owned_generation
  std::shared_ptr<HandedOn> outer;  // what this thread itself inherits
  Memo memo;
  ~Region();
  void clear();
  RegionEntry& entry(const at::Tensor& leaf);
  /// Before a copy of so many bytes is made.
  void make_room(std::int64_t bytes);

 private:
  /// Drops what belongs to leaves that died inside the region.
  void sweep();
  std::size_t sweep_at_ = 64;     // entries
  std::int64_t swept_bytes_ = 0;  // of the copies that the last sweep left
  std::int64_t bytes_since_ = 0;  // of those made since
};
Region& make_region();

/// The regions of the threads that work for one that is in a region: each has its own in here. They
/// end when that region was left and the last of their work is done.
class WorkersRegions : public HandedOn {
 public:
  Region& of_this_thread();

 private:
  std::mutex mutex_;
  std::unordered_map<std::thread::id, Region> regions_;
};

// A word of static TLS: an access without a call.
[[gnu::tls_model("initial-exec")]] inline thread_local constinit Region* region_of_this_thread =
    nullptr;

inline Region& region() { return region_of_this_thread ? *region_of_this_thread : make_region(); }

/// The region that this thread works for where it has entered none itself; else its own.
Region& inherited_region(Region& own);
inline Region& region_in_force() {
  Region& own = region();
  return own.depth > 0 ? own : inherited_region(own);
}

/// Hooks are used for copies that live across regions, and wherever they are free.
bool uses_hooks();

/// Destroys the copies under the lock, and the tensors that they held (which may run anybody's
/// code) outside of it.
void discard(std::vector<LowCopy>&& copies);

/// Copies that stand in no table, discarded at the end of the scope.
struct Loose {
  std::vector<LowCopy> copies;
  ~Loose() {
    if (!copies.empty()) discard(std::move(copies));
  }
};

}  // namespace demi::weights
