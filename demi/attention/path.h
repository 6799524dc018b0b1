#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string_view>

#include "demi/core/bf16_products.h"
#include "demi/core/export.h"
#include "demi/core/instruction_set.h"

namespace demi::sdpa {

/// How attention runs on a CPU.
enum class Path {
  libtorch,       // LibTorch's op as it is
  fused,          // LibTorch's fused kernel in FP32, on casts of 16-bit operands
  tiles,          // bf16: a head at a time, its own products
  blocks,         // some queries at a time, products in FP32
  blocks_16_bit,  // the same, products in the operands' 16-bit dtype
};

DEMI_API std::string_view name_of(Path path);

/// The path that is fastest, from measurements (docs/decisions/attention.md), whether or not it can
/// do all that is asked. Tiles in bf16 are, also on processors whose bf16_products() are FP32's.
DEMI_API Path usual_path(c10::ScalarType dtype, const InstructionSet& instructions);

/// The fastest one of the others, for matrices of so many weights, if matrix products in bf16 run
/// as `products` says.
DEMI_API Path path_without_tiles(c10::ScalarType dtype, std::int64_t weights,
                                 const InstructionSet& instructions, Bf16Products products);

/// The path that the environment's DEMI_ATTENTION names, read at each call. Throws UsageError for
/// another name.
DEMI_API std::optional<Path> forced_path();

/// forced_path(), else usual_path() on this machine.
Path path_for(c10::ScalarType dtype);

}  // namespace demi::sdpa
