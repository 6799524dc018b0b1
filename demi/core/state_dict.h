#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "demi/core/export.h"

namespace demi {

/// The state of a scaler or a schedule as plain numbers under PyTorch's names, for whatever writes
/// the checkpoint. A double holds every value met here exactly: fp32 scales, counters under 2^53,
/// learning rates.
using StateDict = std::map<std::string, double>;

/// The value under `key`. Throws UsageError that names `where` and lists the keys there are.
DEMI_API double state_value(const StateDict& state, const std::string& key, const char* where);

/// The same for one that must be a whole number from 0 to `greatest` (2^53 at most); UsageError
/// otherwise.
DEMI_API int64_t state_count(const StateDict& state, const std::string& key, const char* where,
                             int64_t greatest = int64_t{1} << 53);

}  // namespace demi
