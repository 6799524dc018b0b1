#include "demi/core/instruction_set.h"

#include <fstream>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace demi {
namespace {

InstructionSet detect() {
  InstructionSet set;
#if defined(__x86_64__)
  __builtin_cpu_init();
  set.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  set.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (set.avx512 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx))
    set.avx512_bf16 = (eax >> 5) & 1u;
  if (set.avx512 && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
    set.avx512_fp16 = (edx >> 23) & 1u;
    set.amx_bf16 = (edx >> 22) & 1u;
  }
#endif
  return set;
}

}  // namespace

const InstructionSet& instruction_set() {
  static const InstructionSet set = detect();
  return set;
}

std::string describe(const InstructionSet& set) {
  std::string text;
  const auto add = [&](bool has, std::string_view name) {
    if (has) text.append(text.empty() ? "" : ", ").append(name);
  };
  add(set.avx2 && !set.avx512, "AVX2");
  add(set.avx512, "AVX-512");
  add(set.avx512_bf16, "AVX512_BF16");
  add(set.avx512_fp16, "AVX512_FP16");
  add(set.amx_bf16, "AMX-BF16");
  return text.empty() ? "baseline x86-64" : text;
}

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) {
      const auto colon = line.find(": ");
      if (colon != std::string::npos) return line.substr(colon + 2);
    }
  }
  return "unknown processor";
}

bool has_bf16_hardware() { return instruction_set().avx512_bf16 || instruction_set().amx_bf16; }

}  // namespace demi
