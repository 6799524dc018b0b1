#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
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

/// Of this thread.
struct Region {
  int depth = 0;
  std::unordered_map<const c10::TensorImpl*, RegionEntry> entries;
  std::uint64_t generation = 0;  // as owned_generation
  std::size_t sweep_at =
      64;  // entries of leaves that died inside the region go when there are so many
  Memo memo;
  ~Region();
  void clear();
  void sweep();
};
Region& make_region();

// A word of static TLS: an access without a call.
[[gnu::tls_model("initial-exec")]] inline thread_local constinit Region* region_of_this_thread =
    nullptr;

inline Region& region() { return region_of_this_thread ? *region_of_this_thread : make_region(); }

/// Hooks are used for copies that live across regions, and wherever they are free.
bool uses_hooks();

/// Destroys the copies under the lock, and the tensors that they held (which may run anybody's
/// code) outside of it.
void discard(std::vector<LowCopy>&& copies);

}  // namespace demi::weights
