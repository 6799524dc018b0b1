#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string_view>

#include "demi/core/error.h"

namespace demi::data {

/// Checks whole numbers that a class is given: throws UsageError with `where` if one is wrong.
struct Require {
  std::string_view where;

  void operator()(bool right, std::string_view what, int64_t seen,
                  std::string_view accepted) const {
    if (right) return;
    throw UsageError(
        {.where = where, .what = what, .seen = fmt::to_string(seen), .accepted = accepted});
  }
};

}  // namespace demi::data
