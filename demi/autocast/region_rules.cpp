#include "demi/autocast/region_rules.h"

#include <ATen/autocast_mode.h>

#include <algorithm>

#include "demi/autocast/op_table.h"
#include "demi/autocast/thread_tables.h"

namespace demi {

bool region_has_rule(c10::DeviceType device, std::span<const int> ops) {
  if (!at::autocast::is_autocast_available(device) || !at::autocast::is_autocast_enabled(device))
    return false;
  const OpTable* table = table_in_force(device);
  if (table == follows_global()) table = global_table(device);
  return std::ranges::any_of(ops, [&](int op) {
    return table->category[static_cast<std::size_t>(op)] != OpCategory::unchanged;
  });
}

}  // namespace demi
