#include "demi/core/processor.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

namespace demi {
namespace {

// The vendor's letters in EBX, EDX, ECX (Intel SDM, volume 2, table 3-8; AMD APM, volume 3, E.3.1).
CpuidLeaves intel(std::uint32_t signature) {
  return {.ebx_0 = 0x756E6547, .ecx_0 = 0x6C65746E, .edx_0 = 0x49656E69, .eax_1 = signature};
}
CpuidLeaves amd(std::uint32_t signature) {
  return {.ebx_0 = 0x68747541, .ecx_0 = 0x444D4163, .edx_0 = 0x69746E65, .eax_1 = signature};
}

// Signatures of published dumps and of the vendors' revision guides.
TEST(Processor, FamilyAndModelCountTheirExtensions) {
  const struct {
    CpuidLeaves leaves;
    int family, model;
    const char* name;
  } rows[] = {
      {intel(0x000C06F2), 6, 207, "Emerald Rapids"},
      {intel(0x000806F8), 6, 143, "Sapphire Rapids"},
      {intel(0x000A06D1), 6, 173, "Granite Rapids"},
      {intel(0x0005065B), 6, 85, "Cooper Lake"},
      {intel(0x00050654), 6, 85, "Skylake with AVX-512"},
      {intel(0x000006D8), 6, 13, "Pentium M"},
      {intel(0x00000F41), 15, 4, "Pentium 4"},
      {intel(0x00000543), 5, 4, "Pentium MMX"},
      {amd(0x00A10F11), 25, 17, "Zen 4, Genoa"},
      {amd(0x00A60F12), 25, 97, "Zen 4, Raphael"},
      {amd(0x00A20F10), 25, 33, "Zen 3, Vermeer"},
      {amd(0x00B00F21), 26, 2, "Zen 5, Turin"},
      {amd(0x00B40F40), 26, 68, "Zen 5, Granite Ridge"},
      {amd(0x00830F10), 23, 49, "Zen 2, Rome"},
  };
  for (const auto& row : rows) {
    const Processor p = processor_of(row.leaves);
    EXPECT_EQ(p.family, row.family) << row.name;
    EXPECT_EQ(p.model, row.model) << row.name;
  }
  EXPECT_EQ(processor_of(intel(0)).vendor, "GenuineIntel");
  EXPECT_EQ(processor_of(amd(0)).vendor, "AuthenticAMD");
  EXPECT_EQ(processor_of({}).vendor, "");
  EXPECT_EQ(describe(processor_of({}).instructions), "baseline x86-64");
}

// Leaf 1: FMA 12, OSXSAVE 27, AVX 28, F16C 29. Leaf 7: AVX2 5, F 16, DQ 17, BW 30, VL 31 of EBX,
// AMX-BF16 22, AVX512_FP16 23 of EDX; leaf 7.1: AVX512_BF16 5 of EAX. XCR0: SSE 1, AVX 2, AVX-512
// 5 to 7, tiles 17 and 18 (Intel SDM, volume 1, 13.3).
CpuidLeaves everything() {
  CpuidLeaves leaves = intel(0x000C06F2);
  leaves.ecx_1 = 1u << 12 | 1u << 27 | 1u << 28 | 1u << 29;
  leaves.ebx_7 = 1u << 5 | 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
  leaves.edx_7 = 1u << 22 | 1u << 23 | 1u << 24;
  leaves.eax_7_1 = 1u << 5;
  leaves.xcr0 = 0x600E7;
  return leaves;
}

TEST(Processor, InstructionsCountIfTheOperatingSystemSavesTheirState) {
  const auto with = [](auto change) {
    CpuidLeaves leaves = everything();
    change(leaves);
    return describe(processor_of(leaves).instructions);
  };
  const std::string all = "AVX-512, AVX512_BF16, AVX512_FP16, AMX-BF16";
  EXPECT_EQ(with([](CpuidLeaves&) {}), all);
  EXPECT_EQ(with([](CpuidLeaves& l) { l.xcr0 = 0xE7; }), "AVX-512, AVX512_BF16, AVX512_FP16")
      << "a kernel that knows no tiles";
  EXPECT_EQ(with([](CpuidLeaves& l) { l.edx_7 = 1u << 23; }), "AVX-512, AVX512_BF16, AVX512_FP16")
      << "a hypervisor that hides AMX";
  EXPECT_EQ(with([](CpuidLeaves& l) { l.eax_7_1 = 0; }), "AVX-512, AVX512_FP16, AMX-BF16");
  EXPECT_EQ(with([](CpuidLeaves& l) { l.xcr0 = 0x7; }), "AVX2");
  EXPECT_EQ(with([](CpuidLeaves& l) { l.ebx_7 &= ~(1u << 31); }), "AVX2") << "no VL";
  EXPECT_EQ(with([](CpuidLeaves& l) { l.xcr0 = 0x3; }), "baseline x86-64");
  EXPECT_EQ(with([](CpuidLeaves& l) { l.ecx_1 &= ~(1u << 27); }), "baseline x86-64");
  EXPECT_EQ(with([](CpuidLeaves& l) { l.ecx_1 &= ~(1u << 12); }),
            "AVX-512, AVX512_BF16, "
            "AVX512_FP16, AMX-BF16")
      << "FMA is AVX2's alone";
}

std::string of_kernel(const std::string& field) {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with(field + "\t")) return line.substr(line.find(':') + 2);
  return "";
}

TEST(Processor, HereIsTheOneThatTheKernelNames) {
  const std::string vendor = of_kernel("vendor_id");
  if (vendor.empty()) GTEST_SKIP() << "this kernel names no vendor";
  EXPECT_EQ(processor().vendor, vendor);
  EXPECT_EQ(std::to_string(processor().family), of_kernel("cpu family"));
  EXPECT_EQ(std::to_string(processor().model), of_kernel("model"));
}

}  // namespace
}  // namespace demi
