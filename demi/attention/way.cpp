#include "demi/attention/way.h"

#include <array>
#include <cstdlib>
#include <string>

#include "demi/core/error.h"

namespace demi::sdpa {
namespace {

constexpr std::array<std::pair<Way, std::string_view>, 5> kNames{{
    {Way::libtorch, "libtorch"},
    {Way::fused, "fused"},
    {Way::tiles, "tiles"},
    {Way::blocks, "blocks"},
    {Way::blocks_16_bit, "blocks_16_bit"},
}};

// With AVX512_BF16 products by blocks took 0.57 x the time of FP32's fused kernel at 1,024 queries.
// Below this many weights a matrix the host's work for each block outweighs that.
constexpr std::int64_t kLeastWeights = 128 * 128;

}  // namespace

std::string_view name_of(Way way) { return kNames[std::size_t(way)].second; }

Way usual_way(c10::ScalarType dtype, const InstructionSet& instructions) {
  const bool multiplies = instructions.amx_bf16 || instructions.avx512_bf16;
  return dtype == c10::kBFloat16 && multiplies ? Way::tiles : Way::fused;
}

Way way_without_tiles(c10::ScalarType dtype, std::int64_t weights,
                      const InstructionSet& instructions, Bf16Products products) {
  const bool is_faster_in_16_bits = products == Bf16Products::bf16 && instructions.avx512_bf16 &&
                                    !instructions.amx_bf16 && weights >= kLeastWeights;
  return dtype == c10::kBFloat16 && is_faster_in_16_bits ? Way::blocks_16_bit : Way::fused;
}

std::optional<Way> forced_way() {
  const char* given = std::getenv("DEMI_ATTENTION");
  if (!given || !*given) return std::nullopt;
  for (const auto& [way, name] : kNames)
    if (given == name) return way;
  refuse({.where = "attention.way",
          .what = "DEMI_ATTENTION names no way",
          .seen = given,
          .accepted = "libtorch, fused, tiles, blocks, blocks_16_bit"});
}

Way way_for(c10::ScalarType dtype) {
  if (const auto forced = forced_way()) return *forced;
  return usual_way(dtype, onednn_instruction_set());
}

}  // namespace demi::sdpa
