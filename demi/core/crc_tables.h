#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace demi {

/// The CRC of 32 bits with this polynomial, eight bytes at a time (slicing by 8: Kounavis and
/// Berry, "Novel Table Lookup-Based Algorithms for High-Performance CRC Generation", 2008). The
/// polynomial is written with bit 31 as the coefficient of x^0: the order in which the checksum
/// reads bits.
template <std::uint32_t kPolynomial>
struct CrcTables {
  static constexpr std::size_t kWord = 8;
  // kTables[k][byte] is the remainder of that byte with k zero bytes behind it.
  using Tables = std::array<std::array<std::uint32_t, 256>, kWord>;

  static constexpr std::uint32_t times_x(std::uint32_t a) {
    return (a >> 1) ^ (a & 1 ? kPolynomial : 0);
  }

  static constexpr Tables make() {
    Tables tables{};
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
      std::uint32_t rest = byte;
      for (auto& table : tables) {
        for (int bit = 0; bit < 8; ++bit) rest = times_x(rest);
        table[byte] = rest;
      }
    }
    return tables;
  }

  /// The remainder of these bytes behind those that have the remainder `rest`.
  static std::uint32_t remainder(std::uint32_t rest, const unsigned char* data, std::size_t bytes) {
    static constexpr Tables kTables = make();
    for (; bytes >= kWord; bytes -= kWord, data += kWord) {
      std::uint32_t sum = 0;
      for (std::size_t i = 0; i < kWord; ++i) {
        const unsigned char before = i < 4 ? static_cast<unsigned char>(rest >> (8 * i)) : 0;
        sum ^= kTables[kWord - 1 - i][data[i] ^ before];
      }
      rest = sum;
    }
    for (; bytes > 0; --bytes) rest = (rest >> 8) ^ kTables[0][(rest ^ *data++) & 0xFF];
    return rest;
  }
};

}  // namespace demi
