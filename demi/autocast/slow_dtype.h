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

/// Why this dtype is slower than FP32 on this device (CUDA: on any of them, which are named where
/// there are several), with the factor where it is known; "" where it is not slower.
DEMI_API std::string why_slow(c10::DeviceType device, c10::ScalarType dtype);

/// As above, of a CUDA device of this compute capability (10 * major + minor), by NVIDIA's table of
/// arithmetic throughput (CUDA C++ programming guide). Pure.
DEMI_API std::string why_slow_on_cuda(int compute_capability, c10::ScalarType dtype);
DEMI_API std::string why_slow_on_cuda(const std::vector<int>& compute_capabilities,
                                      c10::ScalarType dtype);

/// What `ask` answers when it first knows ("" too), and "" ever after: a question that comes before
/// the driver is there does not use up the answer.
DEMI_API std::string once_known(std::atomic<bool>& known,
                                const std::function<std::optional<std::string>()>& ask);

/// One c10 warning a process for each device type and dtype. Any thread.
void warn_where_slow(c10::DeviceType device, c10::ScalarType dtype);

}  // namespace demi
