#include "demi/weights/cache.h"

#include <algorithm>
#include <iterator>

namespace demi::weights {

std::unordered_map<const c10::TensorImpl*, OwnedParameter>& owned() {
  static auto* table = new std::unordered_map<const c10::TensorImpl*, OwnedParameter>();
  return *table;
}

namespace {

// Nobody but our own alias, through the gradient edge, holds the leaf any more.
bool is_abandoned(const RegionEntry& entry) {
  const auto leaf = entry.leaf.lock();
  const auto has_alias = [](const LowCopy& copy) { return copy.aliases.defined(); };
  const bool by_alias = std::any_of(entry.copies.begin(), entry.copies.end(), has_alias);
  return !leaf || (by_alias && leaf.use_count() == 2);  // the accumulator's and `leaf`
}

constexpr const char* kRegionName = "demi.weights";

void free_region() {
  delete region_of_this_thread;
  region_of_this_thread = nullptr;
}

[[gnu::tls_model("initial-exec")]] thread_local constinit bool thread_is_ending = false;

}  // namespace

// A thread asks for a second one where an Autocast of static or thread_local lifetime is left while
// the thread is torn down.
Region& make_region() {
  struct Owner {
    ~Owner() {
      free_region();
      thread_is_ending = true;
    }
  };
  region_of_this_thread = new Region();
  if (!thread_is_ending) static thread_local const Owner owner;
  return *region_of_this_thread;
}

Region& WorkersRegions::of_this_thread() {
  const std::lock_guard lock(mutex_);
  Region& mine = regions_[std::this_thread::get_id()];
  mine.depth = 1;
  return mine;
}

Region& inherited_region(Region& own) {
  const auto workers = std::static_pointer_cast<WorkersRegions>(inherited_state(kRegionName));
  return workers ? workers->of_this_thread() : own;
}

void enter_region() {
  Region& here = region();
  if (here.depth++ > 0) return;
  here.outer = inherited_state(kRegionName);
  set_inherited_state(kRegionName, std::make_shared<WorkersRegions>());
}

void leave_region() {
  Region& here = region();
  if (--here.depth > 0) return;
  here.clear();
  set_inherited_state(kRegionName, std::move(here.outer));
  if (thread_is_ending) free_region();
}

Region::~Region() { clear(); }

void Region::clear() {
  if (entries.empty()) return;
  std::vector<LowCopy> dropped;
  for (auto& [leaf, entry] : entries)
    std::move(entry.copies.begin(), entry.copies.end(), std::back_inserter(dropped));
  entries.clear();
  ++generation;
  sweep_at_ = 64;
  swept_bytes_ = bytes_since_ = 0;
  discard(std::move(dropped));
}

RegionEntry& Region::entry(const at::Tensor& leaf) {
  const c10::TensorImpl* key = leaf.unsafeGetTensorImpl();
  const auto found = entries.find(key);
  if (found != entries.end()) return found->second;
  if (entries.size() >= sweep_at_) sweep();
  return entries.emplace(key, RegionEntry{WeakLeaf(leaf.getIntrusivePtr())}).first->second;
}

// Sweeps after as many bytes as were alive at the last sweep: the work of sweeping is then in
// proportion to that of casting, and copies of dead leaves take no more than those of living ones
// and one more.
void Region::make_room(std::int64_t bytes) {
  if (bytes_since_ >= swept_bytes_) sweep();
  bytes_since_ += bytes;
}

void Region::sweep() {
  std::vector<LowCopy> dropped;
  for (auto it = entries.begin(); it != entries.end();) {
    const bool dead = is_abandoned(it->second);
    if (dead)
      std::move(it->second.copies.begin(), it->second.copies.end(), std::back_inserter(dropped));
    it = dead ? entries.erase(it) : std::next(it);
  }
  ++generation;
  sweep_at_ = 2 * entries.size() + 64;
  swept_bytes_ = bytes_since_ = 0;
  for (const auto& [leaf, entry] : entries)
    for (const auto& copy : entry.copies)
      swept_bytes_ += static_cast<std::int64_t>(copy.low.nbytes());
  discard(std::move(dropped));
}

void discard(std::vector<LowCopy>&& copies) {
  if (copies.empty()) return;
  std::vector<at::Tensor> held;
  {
    const std::unique_lock lock(cache_mutex());
    for (auto& copy : copies) {
      copy.aliases.move_to(held);
      held.push_back(std::move(copy.low));
    }
    copies.clear();
  }
}

bool uses_hooks() { return hook_works() && (hook_is_free() || mode() == Mode::keep); }

}  // namespace demi::weights
