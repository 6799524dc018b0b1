#pragma once

#include <c10/core/Device.h>

#include <string>
#include <string_view>
#include <vector>

#include "demi/core/export.h"
#include "lab/recipes/config.h"

namespace demi::train {

/// The names in a list of devices: "cuda:0,cuda:1". Does not ask whether they are there. Throws
/// UsageError with `source` for what names no device, for a GPU that stands twice, and for the CPU
/// beside GPUs.
DEMI_API std::vector<std::string> device_list(std::string_view text, std::string_view source);

/// The name of the device on which a rank trains: Config::device, or its own of Config::devices.
DEMI_API std::string device_of_rank(const Config& config, int rank);

/// Throws UsageError where Config::devices contradicts Config::ranks or Config::device.
DEMI_API void check_devices(const Config& config);

/// Throws DeviceError if the ranks of one machine do not have a GPU each: `device` is that of
/// Config::device, and `gpus` the number of GPUs here. Does nothing for ranks on the CPU, or if
/// Config::devices names one for each.
DEMI_API void require_gpus(const Config& config, c10::Device device, int gpus);

}  // namespace demi::train
