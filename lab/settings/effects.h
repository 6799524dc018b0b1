#pragma once

#include <span>
#include <string>
#include <string_view>

#include "demi/core/export.h"
#include "lab/settings/config.h"
#include "lab/settings/config_source.h"

namespace demi::settings {

/// Why a setting does nothing in a run of that config: "crops belong to CIFAR and MNIST". "": it
/// does something.
DEMI_API std::string why_without_effect(const Config& config, std::string_view setting);

/// Throws UsageError for a setting that an option or a variable asks for and that does nothing in
/// this run. A recipe and a file have values for all settings, and ask for none of them.
DEMI_API void check_effects(const Config& config, std::span<const Assignment> given);

/// Sets the recipe's settings of its own optimizer (its betas and options) and of its own schedule
/// (lengths that another does not use) to the default, if the given settings name another one.
/// Given settings stay, and are checked.
DEMI_API void leave_out_for_others(Config& recipe, std::span<const Assignment> given);

}  // namespace demi::settings
