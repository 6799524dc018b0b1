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

Way usual_way(c10::ScalarType dtype, std::int64_t queries, std::int64_t keys,
              const InstructionSet& instructions) {
  if (dtype != c10::kBFloat16) return Way::fused;
  const std::int64_t weights = queries * keys;
  if (instructions.amx_bf16) return Way::tiles;
  return instructions.avx512_bf16 && weights >= kLeastWeights ? Way::blocks_16_bit : Way::fused;
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

Way way_for(c10::ScalarType dtype, std::int64_t queries, std::int64_t keys) {
  if (const auto forced = forced_way()) return *forced;
  return usual_way(dtype, queries, keys, onednn_instruction_set());
}

}  // namespace demi::sdpa
