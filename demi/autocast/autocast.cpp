#include "demi/autocast/autocast.h"

#include <ATen/autocast_mode.h>

namespace demi {

Autocast::Autocast(c10::DeviceType device, AutocastOptions options)
    : device_(device),
      outer_dtype_(at::autocast::get_autocast_dtype(device)),
      outer_enabled_(at::autocast::is_autocast_enabled(device)),
      outer_cache_enabled_(at::autocast::is_autocast_cache_enabled()) {
  at::autocast::set_autocast_enabled(device, options.enabled);
  if (options.dtype) at::autocast::set_autocast_dtype(device, *options.dtype);
  at::autocast::set_autocast_cache_enabled(options.cache_enabled);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, outer_enabled_);
  at::autocast::set_autocast_dtype(device_, outer_dtype_);
  at::autocast::set_autocast_cache_enabled(outer_cache_enabled_);
}

}  // namespace demi
