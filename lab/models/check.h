#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string_view>

#include "demi/core/error.h"

namespace demi::models {

/// Throws UsageError if a size is below 1.
inline void require_positive(std::string_view where, std::string_view option, int64_t value) {
  if (value >= 1) return;
  refuse({.where = where,
          .what = fmt::format("{} is too small", option),
          .seen = fmt::to_string(value),
          .accepted = ">= 1"});
}

}  // namespace demi::models
