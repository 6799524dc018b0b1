#include "demi/core/instruction_set.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>

#include "demi/core/processor.h"

namespace demi {
namespace {

// oneDNN's levels, each with what it allows; those above AVX512_FP16 allow everything.
struct Level {
  std::string_view name;
  InstructionSet allowed;
};
constexpr InstructionSet kAvx2{.avx2 = true}, kAvx512{.avx2 = true, .avx512 = true},
    kBf16{.avx2 = true, .avx512 = true, .avx512_bf16 = true},
    kFp16{.avx2 = true, .avx512 = true, .avx512_bf16 = true, .avx512_fp16 = true};
constexpr Level kLevels[] = {{"sse41", {}},
                             {"avx", {}},
                             {"avx2", kAvx2},
                             {"avx2_vnni", kAvx2},
                             {"avx2_vnni_2", kAvx2},
                             {"avx512_core", kAvx512},
                             {"avx512_core_vnni", kAvx512},
                             {"avx512_core_bf16", kBf16},
                             {"avx512_core_fp16", kFp16},
                             {"avx10_1_512", kFp16}};

InstructionSet limited_by_environment() {
  for (const char* name : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"})
    if (const char* level = std::getenv(name); level && *level)
      return limited_to(instruction_set(), level);
  return instruction_set();
}

}  // namespace

const InstructionSet& instruction_set() { return processor().instructions; }

InstructionSet limited_to(InstructionSet set, std::string_view level) {
  const auto is_named = [&](const Level& one) {
    return std::ranges::equal(level, one.name, {}, [](unsigned char c) { return std::tolower(c); });
  };
  const auto* found = std::ranges::find_if(kLevels, is_named);
  if (found == std::end(kLevels)) return set;
  const InstructionSet& allowed = found->allowed;
  return {.avx2 = set.avx2 && allowed.avx2,
          .avx512 = set.avx512 && allowed.avx512,
          .avx512_bf16 = set.avx512_bf16 && allowed.avx512_bf16,
          .avx512_fp16 = set.avx512_fp16 && allowed.avx512_fp16,
          .amx_bf16 = set.amx_bf16 && allowed.amx_bf16};
}

const InstructionSet& onednn_instruction_set() {
  static const InstructionSet set = limited_by_environment();
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

bool has_bf16_hardware() {
  const InstructionSet& set = onednn_instruction_set();
  return set.avx512_bf16 || set.amx_bf16;
}

}  // namespace demi
