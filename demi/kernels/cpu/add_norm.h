#pragma once

#include "demi/kernels/cpu/wide.h"

// With vectors. Included after the file that defines Vector.
#include "demi/kernels/add_norm_loops.h"  // IWYU pragma: export
