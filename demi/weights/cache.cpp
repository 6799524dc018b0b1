#include "demi/weights/cache.h"

#include <algorithm>
#include <iterator>
#include <mutex>

namespace demi::weights {

std::unordered_map<const c10::TensorImpl*, Owned>& owned() {
  static auto* table = new std::unordered_map<const c10::TensorImpl*, Owned>();
  return *table;
}

namespace {

// Nobody but our own alias, through the gradient edge, holds the leaf any more.
bool is_abandoned(const RegionEntry& entry) {
  const auto leaf = entry.leaf.lock();
  const auto has_alias = [](const LowCopy& copy) { return copy.alias.defined(); };
  const bool by_alias = std::any_of(entry.copies.begin(), entry.copies.end(), has_alias);
  return !leaf || (by_alias && leaf.use_count() == 2);  // the accumulator's and `leaf`
}

}  // namespace

Region& make_region() {
  static thread_local Region mine;
  region_of_this_thread = &mine;
  return mine;
}

Region::~Region() { clear(); }

void Region::clear() {
  if (entries.empty()) return;
  std::vector<LowCopy> dropped;
  for (auto& [leaf, entry] : entries)
    std::move(entry.copies.begin(), entry.copies.end(), std::back_inserter(dropped));
  entries.clear();
  ++generation;
  sweep_at = 64;
  discard(std::move(dropped));
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
  sweep_at = 2 * entries.size() + 64;
  discard(std::move(dropped));
}

void discard(std::vector<LowCopy>&& copies) {
  std::vector<at::Tensor> held;
  {
    const std::unique_lock lock(cache_mutex());
    for (auto& copy : copies) {
      held.push_back(std::move(copy.alias));
      held.push_back(std::move(copy.low));
    }
    copies.clear();
  }
}

}  // namespace demi::weights
