#pragma once

#include <c10/core/Device.h>

#include <string>

#include "demi/core/export.h"
#include "lab/settings/config.h"
#include "lab/workload/workload.h"

namespace demi::workload {

/// Why a network from Python cannot run in channels_last on pictures of that shape: its first
/// error, with the Python line, as of a `view` that needs contiguous memory. "": it can. It is read
/// from its file, and tried in both modes.
DEMI_API std::string why_not_channels_last(const settings::Config& config, const DataShape& shape,
                                           c10::Device device);

}  // namespace demi::workload
