#pragma once

#include <array>
#include <cstdint>

/// Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC
/// 2011, section 3.4. Written here instead of calling at::Philox4_32, so that the numbers do not
/// depend on LibTorch's version.
namespace demi::philox {

using Block = std::array<uint32_t, 4>;
using Key = std::array<uint32_t, 2>;

constexpr Block generate(Block counter, Key key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key = {key[0] + 0x9E3779B9, key[1] + 0xBB67AE85};
  }
  return counter;
}

}  // namespace demi::philox
