#pragma once

#include <string>
#include <string_view>

#include "demi/core/export.h"

namespace demi {

/// What this processor can run, asked once from CPUID (GCC's __builtin_cpu_supports, which includes
/// the operating system's consent). All false where the machine is not x86-64.
struct InstructionSet {
  bool avx2 = false;         // with FMA and F16C
  bool avx512 = false;       // F, BW, DQ, VL
  bool avx512_bf16 = false;  // Zen 4, Cooper Lake, Sapphire Rapids and newer
  bool avx512_fp16 = false;
  bool amx_bf16 = false;
};

DEMI_API const InstructionSet& instruction_set();

/// What is left of `set` where oneDNN, which multiplies for LibTorch, may use no more than `level`:
/// a value of its environment variable ONEDNN_MAX_CPU_ISA, in upper or lower case. A level that
/// oneDNN has no name for limits nothing, as in oneDNN.
DEMI_API InstructionSet limited_to(InstructionSet set, std::string_view level);

/// instruction_set() as far as the environment's ONEDNN_MAX_CPU_ISA (or its older name
/// DNNL_MAX_CPU_ISA) lets oneDNN use it. Asked once, as oneDNN asks once.
DEMI_API const InstructionSet& onednn_instruction_set();

/// "AVX-512, AVX512_BF16" and so on, for people.
DEMI_API std::string describe(const InstructionSet& set);

/// The processor's own name ("AMD EPYC 9R14"), or "unknown processor".
DEMI_API std::string processor_name();

/// True where matrix products in bf16 run faster than in fp32: where oneDNN may use AVX512_BF16 or
/// AMX (1.9 to 2.3 times); LibTorch's emulation without these instructions takes 0.2 to 0.6 times
/// the speed with AVX-512, less without.
DEMI_API bool has_bf16_hardware();

}  // namespace demi
