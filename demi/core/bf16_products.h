#pragma once

#include <string>
#include <string_view>

#include "demi/core/export.h"
#include "demi/core/instruction_set.h"
#include "demi/core/processor.h"

namespace demi {

/// The way in which matrix products and convolutions of bf16 numbers run on a CPU. The two ways add
/// up in another order, so their results differ in the last bits.
enum class Bf16Products {
  bf16,  // as LibTorch's ops in bf16: by the processor's bf16 instructions, if it has them
  fp32,  // converted to FP32, multiplied there and rounded once (demi/products)
};

/// The name of a way, as DEMI_BF16_PRODUCTS spells it.
DEMI_API std::string_view name_of(Bf16Products products);

/// A way, and what decided for it.
struct Bf16Choice {
  Bf16Products products = Bf16Products::bf16;  // the way
  std::string because;  // the rest of a sentence: "the processor has no BF16 instructions"
};

/// The faster way by a table of processors: a pure function, so that each run, each rank and a
/// resumed run on such a processor computes the same bits. `usable`: those of its instructions that
/// oneDNN may use. For a processor that the table does not list, the instructions decide; for one
/// that is not x86-64, it is LibTorch's ops.
DEMI_API Bf16Choice bf16_choice_of(const Processor& processor, const InstructionSet& usable);

/// The way that the environment's DEMI_BF16_PRODUCTS names ("bf16", "fp32"), else that of this
/// processor. The variable is read once. Throws UsageError for another value.
DEMI_API const Bf16Choice& bf16_choice();

/// bf16_choice()'s way.
DEMI_API Bf16Products bf16_products();

}  // namespace demi
