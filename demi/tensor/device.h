#pragma once

#include <c10/core/Device.h>

#include <string_view>

#include "demi/core/export.h"

namespace demi {

/// "cpu", "cuda", "cuda:1", or "auto": CUDA where a GPU can be used, else the CPU. Throws
/// UsageError for another name and DeviceError for a device that is not here, with the reason.
DEMI_API c10::Device pick_device(std::string_view name);

}  // namespace demi
