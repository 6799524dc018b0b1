#pragma once

#include <cstdint>
#include <functional>

#include "demi/core/export.h"

namespace demi::train {

struct Config;

/// Bytes that one example of synthetic data takes for as long as the run lasts; 0: the config's
/// data are no synthetic ones.
DEMI_API int64_t synthetic_bytes(const Config& config);

/// The largest batch size, at most `most`, for which `peak` (bytes; infinite: memory ran out) is at
/// most `room`: reckoned from the peaks of 8 and 32 as a line, then tried and made smaller until it
/// holds. Throws TrainingError where 8 do not fit.
DEMI_API int64_t largest_batch(const std::function<double(int64_t)>& peak, double room,
                               int64_t most);

}  // namespace demi::train
