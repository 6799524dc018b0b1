#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "demi/core/export.h"

namespace demi {

/// The state of a scaler or a schedule as plain numbers under PyTorch's names, to be written to a
/// checkpoint. A double holds each of these values exactly: fp32 scales, counters below 2^53,
/// learning rates.
using StateDict = std::map<std::string, double>;

/// The value under `key`. Throws UsageError, which names `where` and lists the keys of `state`, if
/// there is no such key.
DEMI_API double state_value(const StateDict& state, const std::string& key, const char* where);

/// The state_value() of a key whose value must be a whole number from 0 to `greatest` (2^53 at
/// most). Throws UsageError for any other value, too.
DEMI_API int64_t state_count(const StateDict& state, const std::string& key, const char* where,
                             int64_t greatest = int64_t{1} << 53);

}  // namespace demi
