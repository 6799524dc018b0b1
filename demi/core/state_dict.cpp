#include "demi/core/state_dict.h"

#include <cmath>
#include <sstream>

#include "demi/core/error.h"

namespace demi {

double state_value(const StateDict& state, const std::string& key, const char* where) {
  if (const auto found = state.find(key); found != state.end()) return found->second;
  std::string known;
  for (const auto& [name, value] : state) known.append(known.empty() ? "" : ", ").append(name);
  throw UsageError(
      {.where = where, .what = "the state dict has no entry \"" + key + "\"", .seen = known});
}

int64_t state_count(const StateDict& state, const std::string& key, const char* where,
                    int64_t greatest) {
  const double value = state_value(state, key, where);
  if (value >= 0 && value <= static_cast<double>(greatest) && value == std::floor(value))
    return static_cast<int64_t>(value);
  std::ostringstream seen;
  seen << value;
  throw UsageError({.where = where,
                    .what = key + " is no count",
                    .seen = seen.str(),
                    .accepted = "a whole number from 0 to " + std::to_string(greatest),
                    .advice = "load a state as state_dict() gave it"});
}

}  // namespace demi
