#pragma once

#include "demi/attention/attention.h"

namespace demi::sdpa {

/// 64 bits of LibTorch's CPU generator.
DropoutSeed draw_seed();

/// A mask with dimensions of 1 in front.
at::Tensor four_dimensions(const at::Tensor& mask);

}  // namespace demi::sdpa
