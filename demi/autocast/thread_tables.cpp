#include "demi/autocast/thread_tables.h"

#include <ATen/autocast_mode.h>

namespace demi {
namespace {

constexpr const char* kName = "demi.autocast";

const OpTable* in_force(const RegionState* outer, std::size_t device) {
  if (const OpTable* own = thread_tables[device]) return own;
  return outer && outer->tables[device] ? outer->tables[device] : follows_global();
}

}  // namespace

std::shared_ptr<RegionState> RegionState::of_this_thread() {
  return std::static_pointer_cast<RegionState>(weights::inherited_state(kName));
}

void RegionState::set(std::shared_ptr<RegionState> state) {
  weights::set_inherited_state(kName, std::move(state));
}

std::shared_ptr<RegionState> RegionState::snapshot() {
  const auto outer = of_this_thread();
  auto state = std::make_shared<RegionState>();
  for (std::size_t device = 0; device < kDeviceTypes; ++device)
    state->tables[device] = in_force(outer.get(), device);
  state->cache_enabled = at::autocast::is_autocast_cache_enabled();
  return state;
}

const OpTable* table_in_force(c10::DeviceType device) {
  const auto index = static_cast<std::size_t>(device);
  if (const OpTable* own = thread_tables[index]) return own;
  return in_force(RegionState::of_this_thread().get(), index);
}

const OpTable* table_now(c10::DeviceType device) {
  const OpTable* table = table_in_force(device);
  if (table != follows_global()) return table;
  const OpTable* global = global_tables[static_cast<std::size_t>(device)];
  return global ? global : table;
}

bool cache_is_enabled() {
  if (!at::autocast::is_autocast_cache_enabled()) return false;
  const auto outer = RegionState::of_this_thread();
  return !outer || outer->cache_enabled;
}

}  // namespace demi
