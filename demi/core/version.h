#pragma once

#include <string_view>

#include "demi/core/export.h"

namespace demi {

/// demi's version: "0.1.0".
DEMI_API std::string_view version();

}  // namespace demi
