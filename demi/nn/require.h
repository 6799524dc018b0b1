#pragma once

#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>

#include "demi/core/error.h"

namespace demi::nn {

/// Throws UsageError unless `holds`.
template <class Value>
void require(std::string_view where, bool holds, std::string_view what, const Value& seen,
             const std::string& accepted) {
  if (holds) return;
  std::ostringstream text;
  text << seen;
  refuse({.where = where, .what = what, .seen = text.str(), .accepted = accepted});
}

inline void require_size(std::string_view where, std::string_view option, std::int64_t value) {
  require(where, value >= 1, std::string(option) + " is too small", value, "1 or more");
}

inline void require_probability(std::string_view where, std::string_view option, double value) {
  require(where, value >= 0 && value <= 1, std::string(option) + " is no probability", value,
          "0 to 1");
}

}  // namespace demi::nn
