#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <string>

#include "demi/core/export.h"

namespace demi {

/// Why this dtype is slower than FP32 on this device (CUDA: the first one), with the factor where
/// it is known; "" where it is not slower.
DEMI_API std::string why_slow(c10::DeviceType device, c10::ScalarType dtype);

/// As above, of a CUDA device of this compute capability (10 * major + minor), by NVIDIA's table of
/// arithmetic throughput (CUDA C++ programming guide). Pure.
DEMI_API std::string why_slow_on_cuda(int compute_capability, c10::ScalarType dtype);

/// One c10 warning a process for each device type and dtype. Any thread.
void warn_where_slow(c10::DeviceType device, c10::ScalarType dtype);

}  // namespace demi
