#pragma once

#include "demi/attention/attention.h"

namespace demi::sdpa {

/// 64 bits of LibTorch's CPU generator.
DropoutSeed draw_seed();

}  // namespace demi::sdpa
