#pragma once

#include <string>
#include <string_view>

#include "demi/core/export.h"

namespace demi::train {

/// The environment variable of the setting of that name: DEMI_BATCH_SIZE of batch-size.
DEMI_API std::string environment_variable(std::string_view setting);

}  // namespace demi::train
