#include "lab/models/check.h"

#include <fmt/format.h>

#include "demi/core/error.h"

namespace demi::models {

void require_positive(std::string_view where, std::string_view option, int64_t value) {
  if (value >= 1) return;
  throw UsageError({.where = where,
                    .what = fmt::format("{} is too small", option),
                    .seen = fmt::to_string(value),
                    .accepted = ">= 1"});
}

}  // namespace demi::models
