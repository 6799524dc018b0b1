#pragma once

#include <cstdint>

#include "demi/core/philox.h"

namespace demi::data {

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

/// Random bits as a function of (seed, epoch, item, purpose), without a state that could be lost
/// between two runs.
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
