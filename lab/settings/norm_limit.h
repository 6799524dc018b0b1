#pragma once

#include <optional>
#include <string_view>

#include "demi/core/export.h"
#include "demi/step/step_options.h"

namespace demi::settings {

/// The limit that --skip-norm-above sets: "5" is a bound, "6sd" six standard deviations, "0" no
/// limit. Throws UsageError for another text.
DEMI_API std::optional<optim::NormLimit> norm_limit_of(std::string_view text,
                                                       std::string_view source);

}  // namespace demi::settings
