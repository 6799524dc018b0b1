#pragma once

#include <array>
#include <cstdint>

namespace demi::data {

/// Random bits as a function of (seed, epoch, item, purpose), without a state that could be lost
/// between two runs. Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy
/// as 1, 2, 3", SC 2011, section 3.4. Written here instead of calling at::Philox4_32, so that the
/// order of data depends on no version of LibTorch.
namespace philox {

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

}  // namespace philox

/// The purpose that random bits are used for. Two purposes never share any.
enum class Purpose : uint32_t {
  shuffle = 1,
  augment = 2,
  bucket = 3,
  synthetic = 4,
  window = 5,
  rank = 6,
  sample = 7
};

constexpr philox::Block random_bits(uint64_t seed, int64_t epoch, int64_t item, Purpose purpose) {
  return philox::generate(
      {static_cast<uint32_t>(item), static_cast<uint32_t>(static_cast<uint64_t>(item) >> 32),
       static_cast<uint32_t>(epoch), static_cast<uint32_t>(purpose)},
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
}

/// A number in [0, below) from 32 random bits; uniform up to below / 2^32.
constexpr int64_t bounded(uint32_t bits, int64_t below) {
  return static_cast<int64_t>((static_cast<uint64_t>(bits) * static_cast<uint64_t>(below)) >> 32);
}

}  // namespace demi::data
