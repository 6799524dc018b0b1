#pragma once

#include <c10/core/Device.h>

#include "demi/core/export.h"
#include "demi/train/names.h"

namespace demi::bench {

/// Operations a second of the fastest product of square matrices of up to 4,096 rows in that
/// precision: in a region where it has one. Takes about a tenth of a second. 0 for fp64, whose
/// products are not measured. Throws as best_rate.
DEMI_API double peak_flop_per_second(const Precision& precision, c10::Device device);

}  // namespace demi::bench
