#include "demi/attention/path.h"

#include <array>
#include <cstdlib>

#include "demi/core/error.h"

namespace demi::sdpa {
namespace {

constexpr std::array<std::pair<Path, std::string_view>, 5> kNames{{
    {Path::libtorch, "libtorch"},
    {Path::fused, "fused"},
    {Path::tiles, "tiles"},
    {Path::blocks, "blocks"},
    {Path::blocks_16_bit, "blocks_16_bit"},
}};

// With AVX512_BF16 products by blocks took 0.57 x the time of FP32's fused kernel at 1,024 queries.
// Below this many weights a matrix the host's work for each block outweighs that.
constexpr std::int64_t kLeastWeights = 128 * 128;

}  // namespace

std::string_view name_of(Path path) { return kNames[std::size_t(path)].second; }

Path usual_path(c10::ScalarType dtype, const InstructionSet& instructions) {
  const bool multiplies = instructions.amx_bf16 || instructions.avx512_bf16;
  return dtype == c10::kBFloat16 && multiplies ? Path::tiles : Path::fused;
}

Path path_without_tiles(c10::ScalarType dtype, std::int64_t weights,
                        const InstructionSet& instructions, Bf16Products products) {
  const bool is_faster_in_16_bits = products == Bf16Products::bf16 && instructions.avx512_bf16 &&
                                    !instructions.amx_bf16 && weights >= kLeastWeights;
  return dtype == c10::kBFloat16 && is_faster_in_16_bits ? Path::blocks_16_bit : Path::fused;
}

std::optional<Path> forced_path() {
  const char* given = std::getenv("DEMI_ATTENTION");
  if (!given || !*given) return std::nullopt;
  for (const auto& [path, name] : kNames)
    if (given == name) return path;
  refuse({.where = "attention.way",
          .what = "DEMI_ATTENTION names no way",
          .seen = given,
          .accepted = "libtorch, fused, tiles, blocks, blocks_16_bit"});
}

Path path_for(c10::ScalarType dtype) {
  if (const auto forced = forced_path()) return *forced;
  return usual_path(dtype, onednn_instruction_set());
}

}  // namespace demi::sdpa
