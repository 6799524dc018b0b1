#pragma once

#include <cstdint>
#include <string_view>

namespace demi::models {

/// Throws UsageError if a size is below 1.
void require_positive(std::string_view where, std::string_view option, int64_t value);

}  // namespace demi::models
