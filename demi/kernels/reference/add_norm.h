#pragma once

#include "demi/kernels/reference/wide.h"

// With float.
#include "demi/kernels/add_norm_loops.h"  // IWYU pragma: export
