#pragma once

#include <string>
#include <string_view>

#include "demi/core/export.h"

namespace demi {

/// Vector instructions that a processor and its operating system support (processor.h reads them
/// from CPUID). All false on other machines than x86-64.
struct InstructionSet {
  bool avx2 = false;         // with FMA and F16C
  bool avx512 = false;       // F, BW, DQ, VL
  bool avx512_bf16 = false;  // Zen 4, Cooper Lake, Sapphire Rapids and newer
  bool avx512_fp16 = false;  // Sapphire Rapids and newer
  bool amx_bf16 = false;     // tiles of bf16: Sapphire Rapids and newer
};

/// The instructions of this processor.
DEMI_API const InstructionSet& instruction_set();

/// The part of `set` that oneDNN, which computes LibTorch's products, may use if its environment
/// variable ONEDNN_MAX_CPU_ISA has the value `level`, in upper or lower case. An unknown level
/// limits nothing, as in oneDNN.
DEMI_API InstructionSet limited_to(InstructionSet set, std::string_view level);

/// instruction_set() limited by the environment's ONEDNN_MAX_CPU_ISA (or its older name
/// DNNL_MAX_CPU_ISA). Read once, as oneDNN reads it once.
DEMI_API const InstructionSet& onednn_instruction_set();

/// A line for people: "AVX-512, AVX512_BF16".
DEMI_API std::string describe(const InstructionSet& set);

/// The processor's model name ("AMD EPYC 9R14"), or "unknown processor".
DEMI_API std::string processor_name();

/// Whether oneDNN may use AVX512_BF16 or AMX. Without these instructions LibTorch emulates matrix
/// products in bf16 at 0.2 to 0.6 of FP32's speed with AVX-512, and at less without it. With them
/// they are faster than FP32's on most processors (bf16_products.h).
DEMI_API bool has_bf16_hardware();

}  // namespace demi
