#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "demi/core/wait_until_testing.h"
#include "demi/distributed/liveness.h"
#include "demi/distributed/store.h"

namespace demi::testing {

/// The last sign of life of a rank of the group with this name, if it has given one to the store.
inline std::optional<distributed::Sign> sign_of(distributed::Store& store, int rank,
                                                const std::string& name = "main") {
  const std::string group = "demi/" + name + "/";
  const auto session = store.get(group + "session");
  if (!session) return std::nullopt;
  const auto text =
      store.get(group + session->substr(0, session->find(' ')) + "/sign/" + std::to_string(rank));
  return text ? std::optional(distributed::Sign::parse(*text)) : std::nullopt;
}

/// Waits until a rank that calls one collective after the other waits in one: between two of its
/// signs, half a second apart, it has begun none. False if it does not in two minutes.
inline bool waits_in_a_collective(distributed::Store& store, int rank,
                                  const std::string& name = "main") {
  std::optional<distributed::Sign> before;
  return wait_until([&] {
    const auto sign = sign_of(store, rank, name);
    if (!sign || (before && sign->count == before->count)) return false;
    const bool waits = before && sign->collectives == before->collectives;
    before = sign;
    return waits;
  });
}

}  // namespace demi::testing
