#include "demi/autocast/recorded_region.h"

#include <utility>

#include "demi/weights/weights.h"

namespace demi {

RecordedRegion::RecordedRegion()
    : cache_enabled_(cache_is_enabled()),
      torch_cache_enabled_(at::autocast::is_autocast_cache_enabled()) {
  std::size_t i = 0;
  for (const auto device : at::autocast::_AUTOCAST_SUPPORTED_DEVICES)
    devices_[i++] = {device, at::autocast::is_autocast_enabled(device),
                     at::autocast::get_autocast_dtype(device), table_now(device)};
}

void RecordedRegion::set(bool cache_enabled) const {
  for (const OfDevice& one : devices_) {
    at::autocast::set_autocast_enabled(one.device, one.enabled);
    at::autocast::set_autocast_dtype(one.device, one.dtype);
  }
  at::autocast::set_autocast_cache_enabled(cache_enabled);
}

RecordedRegion::Guard::Guard(const RecordedRegion& recorded)
    : inherited_(RegionState::of_this_thread()), tables_(thread_tables) {
  recorded.set(recorded.cache_enabled_);
  for (const OfDevice& one : recorded.devices_)
    thread_tables[static_cast<std::size_t>(one.device)] = one.table;
  RegionState::set(RegionState::snapshot());
  at::autocast::increment_nesting();
  weights::enter_region();
}

RecordedRegion::Guard::~Guard() {
  weights::leave_region();
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  thread_tables = tables_;
  RegionState::set(std::move(inherited_));
  outside_.set(outside_.torch_cache_enabled_);
}

}  // namespace demi
