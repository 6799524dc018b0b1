#include "demi/optim/state_dict.h"

#include "demi/core/error.h"

namespace demi {

double state_value(const StateDict& state, const std::string& key, const char* where) {
  if (const auto found = state.find(key); found != state.end()) return found->second;
  std::string known;
  for (const auto& [name, value] : state) known.append(known.empty() ? "" : ", ").append(name);
  throw UsageError(
      {.where = where, .what = "the state dict has no entry \"" + key + "\"", .seen = known});
}

}  // namespace demi
