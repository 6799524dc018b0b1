#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "demi/core/export.h"

namespace demi {

/// Why products in this dtype gain no time over FP32 on this device, or little; "" if there are
/// units for them. For CUDA: on any of the GPUs, which are named if there are several.
DEMI_API std::string why_slow(c10::DeviceType device, c10::ScalarType dtype);

/// The answer of why_slow() for CUDA devices of these compute capabilities (10 * major + minor), by
/// NVIDIA's table of arithmetic throughput (CUDA C++ programming guide). A pure function.
DEMI_API std::string why_slow_on_cuda(int compute_capability, c10::ScalarType dtype);
DEMI_API std::string why_slow_on_cuda(const std::vector<int>& compute_capabilities,
                                      c10::ScalarType dtype);

/// The first answer of `ask` other than std::nullopt, which means not yet known, and "" from then
/// on. So a question before the driver is loaded does not use up the answer.
DEMI_API std::string once_known(std::atomic<bool>& known,
                                const std::function<std::optional<std::string>()>& ask);

/// Warns (c10 warning) if the dtype gains no time over FP32, once for each device type and dtype in
/// this process. Any thread.
void warn_where_slow(c10::DeviceType device, c10::ScalarType dtype);

}  // namespace demi
