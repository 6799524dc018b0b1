#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "demi/core/export.h"
#include "lab/settings/config.h"

namespace demi::settings {

/// Whether it may be the name of a device: auto, cpu, cuda or cuda:N. Does not ask whether it is
/// there.
bool is_device_name(std::string_view name);

/// The names in a list of devices: "cuda:0,cuda:1". Does not ask whether they are there. Throws
/// UsageError with `source` for what names no device, for a GPU named twice, and for the CPU
/// together with GPUs.
DEMI_API std::vector<std::string> device_list(std::string_view text, std::string_view source);

/// The name of the device on which a rank trains: Config::device, or its own of Config::devices.
DEMI_API std::string device_of_rank(const Config& config, int rank);

/// Throws UsageError where Config::devices contradicts Config::ranks or Config::device.
DEMI_API void check_devices(const Config& config);

/// Throws DeviceError if the ranks of one machine that train on GPUs do not have one each. `gpus`:
/// the number of GPUs here. Config::devices names one for each, and is not checked.
DEMI_API void require_gpus(const Config& config, int gpus);

}  // namespace demi::settings
