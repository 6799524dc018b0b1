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

/// "AVX-512, AVX512_BF16" and so on, for people.
DEMI_API std::string describe(const InstructionSet& set);

/// The processor's own name ("AMD EPYC 9R14"), or "unknown processor".
DEMI_API std::string processor_name();

/// True where matrix products in bf16 run faster than in fp32: with AVX512_BF16 or AMX (1.9 to 2.3
/// times); LibTorch's emulation without these instructions takes 0.2 to 0.6 times the speed with
/// AVX-512, less without.
DEMI_API bool has_bf16_hardware();

}  // namespace demi
