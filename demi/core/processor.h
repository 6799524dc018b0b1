#pragma once

#include <cstdint>
#include <string>

#include "demi/core/export.h"
#include "demi/core/instruction_set.h"

namespace demi {

/// A processor as CPUID describes it, or as a hypervisor presents it.
struct Processor {
  std::string vendor;           // "GenuineIntel", "AuthenticAMD"; empty on other than x86-64
  int family = 0;               // with the extended family: 6, 25 (Zen 4), 26 (Zen 5)
  int model = 0;                // with the extended model: 143 (Sapphire Rapids)
  InstructionSet instructions;  // that the operating system lets programs use
};

/// The registers that tell these, by leaf and subleaf of CPUID; 0 where a processor has no such
/// leaf.
struct CpuidLeaves {
  std::uint32_t ebx_0 = 0, ecx_0 = 0, edx_0 = 0;  // the vendor
  std::uint32_t eax_1 = 0;                        // the signature: family, model, stepping
  std::uint32_t ecx_1 = 0;                        // FMA, OSXSAVE, AVX, F16C
  std::uint32_t ebx_7 = 0, edx_7 = 0;             // AVX2, AVX-512; AVX512_FP16, AMX
  std::uint32_t eax_7_1 = 0;                      // AVX512_BF16
  std::uint64_t xcr0 = 0;  // states that the operating system saves; 0 without OSXSAVE
};

/// A pure function of the registers, by Intel's SDM (volume 2, CPUID; volume 1, 13 and 14) and
/// AMD's APM (volume 3, appendix E).
DEMI_API Processor processor_of(const CpuidLeaves& leaves);

/// The processor that this process runs on, asked once.
DEMI_API const Processor& processor();

}  // namespace demi
