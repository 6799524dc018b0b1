#include "lab/files/damage.h"

#include <fmt/format.h>

#include "demi/core/error.h"

namespace demi::files {

void report_damage(const Damage& damage) {
  const std::string what = fmt::format("{}{}{}: {}", damage.file.string(),
                                       damage.place.empty() ? "" : ", ", damage.place, damage.what);
  throw DataError({.where = damage.where,
                   .what = what,
                   .seen = damage.found,
                   .accepted = damage.expected,
                   .advice = damage.advice});
}

}  // namespace demi::files
