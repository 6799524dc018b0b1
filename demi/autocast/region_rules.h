#pragma once

#include <c10/core/DeviceType.h>

#include <span>

namespace demi {

/// Whether this thread is in a region on the device whose policy has a rule for one of the ops
/// (op_number(), op_table.h).
bool region_has_rule(c10::DeviceType device, std::span<const int> ops);

}  // namespace demi
