#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <string>

#include "demi/core/export.h"

namespace demi {

/// Why this dtype is slower than FP32 on this device, with the factor that was measured on such
/// machines; "" where it is not.
DEMI_API std::string why_slow(c10::DeviceType device, c10::ScalarType dtype);

/// One c10 warning a process for each dtype. Any thread.
void warn_where_slow(c10::DeviceType device, c10::ScalarType dtype);

}  // namespace demi
