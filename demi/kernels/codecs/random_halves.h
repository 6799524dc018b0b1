#pragma once

#include <cstdint>

#include "demi/kernels/codecs/codec.h"
#include "demi/kernels/host_device.h"
#include "demi/kernels/step_table.h"

// The random bits of roundings: a function of what is rounded, so that threads, blocks, paths and
// processes change none of them, and a skipped step uses none up. Internal linkage, as formulas.h.
namespace demi::kernels {
namespace {

/// SplitMix64's finalizer (Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
/// OOPSLA 2014, figure 16).
DEMI_HOST_DEVICE std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

/// The bits of one array in one step.
struct RandomStream {
  std::uint32_t first, second;  // keys
};

DEMI_HOST_DEVICE RandomStream stream_of(const RoundingKey& key) {
  const std::uint64_t array = key.tensor * std::uint64_t{4} + key.state;
  const std::uint64_t keys = mixed(key.seed + mixed(array << 32 | key.step));
  return {static_cast<std::uint32_t>(keys), static_cast<std::uint32_t>(keys >> 32)};
}

/// 32 bits: MurmurHash3's finalizer (Appleby) of a counter, with a key before it and one within.
/// Philox with the seven rounds that pass BigCrush takes three times as long, and a rounding asks
/// for less: that halves are uniform, and independent of those of other elements and steps.
template <class W>
DEMI_HOST_DEVICE W random_word(RandomStream stream, W counter) {
  W x = counter + stream.first;
  x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
  x = ((x ^ (x >> 13)) + stream.second) * 0xC2B2AE35u;
  return x ^ (x >> 16);
}

/// Elements k and k + 16 of a group of 32 share a word, so that vectors need no shuffle.
inline constexpr int kWords = kCodeGroup / 2;

/// 16 bits for element i.
DEMI_HOST_DEVICE std::uint32_t random_half(RandomStream stream, std::int64_t i) {
  const auto counter = static_cast<std::uint32_t>(i / kCodeGroup * kWords + i % kWords);
  const std::uint32_t word = random_word(stream, counter);
  return i % kCodeGroup < kWords ? word & 0xFFFFu : word >> 16;
}

DEMI_HOST_DEVICE RoundingKey rounding_key(const StepTable& table, const TensorEntry& tensor,
                                          int state) {
  return {table.inputs.rounding_seed, static_cast<std::uint32_t>(tensor.number),
          static_cast<std::uint32_t>(state), static_cast<std::uint32_t>(*tensor.step)};
}

}  // namespace
}  // namespace demi::kernels
