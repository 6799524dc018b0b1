#include "demi/imported/crc32.h"

#include <array>

namespace demi::imported {
namespace {

constexpr std::uint32_t kReflected = 0xEDB88320;  // 0x04C11DB7, bit by bit from the other end
constexpr std::size_t kWord = 8;

// kRemainders[k][byte] is the remainder of that byte with k zero bytes behind it.
using Remainders = std::array<std::array<std::uint32_t, 256>, kWord>;

constexpr Remainders make_remainders() {
  Remainders tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t rest = byte;
    for (auto& table : tables) {
      for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ (rest & 1 ? kReflected : 0);
      table[byte] = rest;
    }
  }
  return tables;
}

constexpr Remainders kRemainders = make_remainders();

}  // namespace

std::uint32_t crc32(const void* data, std::size_t bytes, std::uint32_t before) {
  const auto* next = static_cast<const unsigned char*>(data);
  std::uint32_t rest = ~before;
  for (; bytes >= kWord; bytes -= kWord, next += kWord) {
    std::uint32_t sum = 0;
    for (std::size_t i = 0; i < kWord; ++i) {
      const unsigned char carried = i < 4 ? static_cast<unsigned char>(rest >> (8 * i)) : 0;
      sum ^= kRemainders[kWord - 1 - i][next[i] ^ carried];
    }
    rest = sum;
  }
  for (; bytes > 0; --bytes) rest = (rest >> 8) ^ kRemainders[0][(rest ^ *next++) & 0xFF];
  return ~rest;
}

}  // namespace demi::imported
