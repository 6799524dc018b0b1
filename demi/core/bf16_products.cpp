#include "demi/core/bf16_products.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "demi/core/error.h"

namespace demi {
namespace {

/// The speed of AVX512_BF16, as far as it is known, on processors without AMX, or whose AMX a
/// hypervisor or ONEDNN_MAX_CPU_ISA hides.
struct Row {
  std::string_view vendor;
  int family, model;  // model -1: each one
  bool is_faster;     // than FP32
  std::string_view known;
};

// Golden Cove and Raptor Cove execute a dot product of bf16 on half of the ports of an FP32 FMA.
constexpr int kEach = -1;
constexpr Row kRows[] = {
    {"GenuineIntel", 6, 207, false, "measured at 0.6 of FP32's rate"},  // Emerald Rapids
    {"GenuineIntel", 6, 143, false, "the core of model 207, which has 0.6 of FP32's rate"},
    {"AuthenticAMD", 25, kEach, true, "measured at 1.9 to 2.3 times FP32's rate"},  // Zen 4
    {"AuthenticAMD", 26, kEach, true, "measured at 4 times FP32's rate"},           // Zen 5
};

const Row* row_of(const Processor& p) {
  const auto* found = std::ranges::find_if(kRows, [&](const Row& row) {
    return row.vendor == p.vendor && row.family == p.family &&
           (row.model == kEach || row.model == p.model);
  });
  return found == std::end(kRows) ? nullptr : found;
}

std::string text_of(const Processor& p) {
  return p.vendor + " family " + std::to_string(p.family) + " model " + std::to_string(p.model);
}

Bf16Choice forced_choice(std::string_view value) {
  for (const Bf16Products one : {Bf16Products::bf16, Bf16Products::fp32})
    if (value == name_of(one))
      return {one, "DEMI_BF16_PRODUCTS=" + std::string(value) + " asks for it"};
  refuse({.where = "core.bf16_products",
          .what = "DEMI_BF16_PRODUCTS names no way",
          .seen = value,
          .accepted = "bf16, fp32"});
}

}  // namespace

std::string_view name_of(Bf16Products products) {
  return products == Bf16Products::bf16 ? "bf16" : "fp32";
}

Bf16Choice bf16_choice_of(const Processor& processor, const InstructionSet& usable) {
  if (processor.vendor.empty()) return {Bf16Products::bf16, "LibTorch's ops are used as they are"};
  if (usable.amx_bf16) return {Bf16Products::bf16, "the processor has AMX-BF16"};
  const InstructionSet& has = processor.instructions;
  if (!usable.avx512_bf16)
    return {Bf16Products::fp32,
            has.avx512_bf16 || has.amx_bf16
                ? "ONEDNN_MAX_CPU_ISA leaves out the processor's BF16 instructions"
                : "the processor has no BF16 instructions"};
  const Row* row = row_of(processor);
  if (!row)
    return {Bf16Products::bf16, "the processor has AVX512_BF16 (" + text_of(processor) +
                                    " is not in the table of processors)"};
  return {row->is_faster ? Bf16Products::bf16 : Bf16Products::fp32,
          "AVX512_BF16 without AMX on " + text_of(processor) + ": " + std::string(row->known)};
}

const Bf16Choice& bf16_choice() {
  static const Bf16Choice choice = [] {
    const char* value = std::getenv("DEMI_BF16_PRODUCTS");
    return value && *value ? forced_choice(value)
                           : bf16_choice_of(processor(), onednn_instruction_set());
  }();
  return choice;
}

Bf16Products bf16_products() { return bf16_choice().products; }

}  // namespace demi
