#include "demi/core/processor.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace demi {
namespace {

constexpr bool has_bit(std::uint32_t word, int bit) { return (word >> bit) & 1u; }

std::string vendor_of(const CpuidLeaves& leaves) {
  std::string vendor;
  for (const std::uint32_t word : {leaves.ebx_0, leaves.edx_0, leaves.ecx_0})
    for (int byte = 0; byte < 4; ++byte)
      if (const char c = static_cast<char>((word >> (8 * byte)) & 0xFFu)) vendor += c;
  return vendor;
}

InstructionSet instructions_of(const CpuidLeaves& leaves) {
  constexpr std::uint64_t kAvx = 0x6, kAvx512 = 0xE6, kTiles = 0x60000;
  const auto saves = [&](std::uint64_t states) { return (leaves.xcr0 & states) == states; };
  const bool avx = has_bit(leaves.ecx_1, 27) && has_bit(leaves.ecx_1, 28) && saves(kAvx);
  InstructionSet set;
  set.avx2 =
      avx && has_bit(leaves.ebx_7, 5) && has_bit(leaves.ecx_1, 12) && has_bit(leaves.ecx_1, 29);
  set.avx512 = avx && saves(kAvx512) && has_bit(leaves.ebx_7, 16) && has_bit(leaves.ebx_7, 30) &&
               has_bit(leaves.ebx_7, 17) && has_bit(leaves.ebx_7, 31);
  set.avx512_bf16 = set.avx512 && has_bit(leaves.eax_7_1, 5);
  set.avx512_fp16 = set.avx512 && has_bit(leaves.edx_7, 23);
  set.amx_bf16 = set.avx512 && saves(kTiles) && has_bit(leaves.edx_7, 22);
  return set;
}

#if defined(__x86_64__)
std::uint64_t read_xcr0() {
  std::uint32_t low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (std::uint64_t{high} << 32) | low;
}

CpuidLeaves read_leaves() {
  CpuidLeaves leaves;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(0, &eax, &ebx, &ecx, &edx)) {
    leaves.ebx_0 = ebx;
    leaves.ecx_0 = ecx;
    leaves.edx_0 = edx;
  }
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) {
    leaves.eax_1 = eax;
    leaves.ecx_1 = ecx;
  }
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
    leaves.ebx_7 = ebx;
    leaves.edx_7 = edx;
    if (eax >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) leaves.eax_7_1 = eax;
  }
  if (has_bit(leaves.ecx_1, 27)) leaves.xcr0 = read_xcr0();
  return leaves;
}
#else
CpuidLeaves read_leaves() { return {}; }
#endif

}  // namespace

Processor processor_of(const CpuidLeaves& leaves) {
  const auto field = [&](int first, std::uint32_t mask) {
    return static_cast<int>((leaves.eax_1 >> first) & mask);
  };
  const int base = field(8, 0xF);
  Processor result{.vendor = vendor_of(leaves), .instructions = instructions_of(leaves)};
  result.family = base == 0xF ? base + field(20, 0xFF) : base;
  result.model = field(4, 0xF) + (base == 0x6 || base == 0xF ? field(16, 0xF) << 4 : 0);
  return result;
}

const Processor& processor() {
  static const Processor here = processor_of(read_leaves());
  return here;
}

}  // namespace demi
