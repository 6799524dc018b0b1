#pragma once

#include <string>

#include "demi/imported/archive.h"

namespace demi::imported {

/// 16 hexadecimal digits that are others for another network: of operations, their arguments,
/// inputs and outputs, names of weights, and the bytes of constants. Weights, Python's lines, the
/// exporting PyTorch and ranges of sizes do not count, so the same code exported again is the same
/// network. Two checksums of 32 bits: for mistakes, not against forgery.
std::string identity_of(const Archive& archive);

}  // namespace demi::imported
