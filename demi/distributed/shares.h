#pragma once

#include <cstdint>
#include <vector>

#include "demi/core/export.h"

namespace demi::distributed {

/// Which rank keeps which tensor, by its number: the largest tensor first, each to the rank that
/// has the fewest elements so far, the lowest of those (Graham 1969, "Bounds on multiprocessing
/// timing anomalies": the greatest share is at most 4/3 - 1/(3 ranks) times the least possible).
/// The same on all ranks for the same sizes.
DEMI_API std::vector<int> owners_of_tensors(const std::vector<std::int64_t>& elements, int ranks);

}  // namespace demi::distributed
