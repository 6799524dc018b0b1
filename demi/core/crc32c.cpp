#include "demi/core/crc32c.h"

#include <cstring>

#include "demi/core/crc_tables.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace demi {
namespace {

// Polynomials over GF(2) of degree below 32, modulo Castagnoli's. Bit 31 is the coefficient of x^0:
// the order in which the checksum reads bits.
constexpr std::uint32_t kPolynomial = 0x82F63B78;
constexpr std::uint32_t kOne = std::uint32_t{1} << 31;

using Tables = CrcTables<kPolynomial>;

constexpr std::uint32_t product(std::uint32_t a, std::uint32_t b) {
  std::uint32_t sum = 0;
  for (std::uint32_t power = kOne; power != 0; power >>= 1) {
    if (a & power) sum ^= b;
    b = Tables::times_x(b);
  }
  return sum;
}

// x^(8 bytes), the factor that a remainder takes when so many bytes follow.
constexpr std::uint32_t shift_by(std::uint64_t bytes) {
  std::uint32_t shift = kOne;
  std::uint32_t square = kOne >> 8;  // x^8: one byte
  for (; bytes != 0; bytes >>= 1) {
    if (bytes & 1) shift = product(shift, square);
    square = product(square, square);
  }
  return shift;
}

#if defined(__x86_64__)
constexpr std::size_t kWord = sizeof(std::uint64_t);

std::uint64_t word_at(const unsigned char* data) {
  std::uint64_t word = 0;
  std::memcpy(&word, data, kWord);
  return word;
}

// The instruction takes 3 cycles and one can begin in each cycle, so three remainders of three
// neighbouring lanes are computed side by side and then made one.
__attribute__((target("sse4.2"))) std::uint32_t by_instruction(std::uint32_t rest,
                                                               const unsigned char* data,
                                                               std::size_t bytes) {
  constexpr std::size_t kLane = 8192;
  constexpr std::uint32_t kShiftByLane = shift_by(kLane), kShiftByTwo = shift_by(2 * kLane);
  for (; bytes >= 3 * kLane; bytes -= 3 * kLane, data += 3 * kLane) {
    std::uint64_t first = rest, second = 0, third = 0;
    for (std::size_t i = 0; i < kLane; i += kWord) {
      first = _mm_crc32_u64(first, word_at(data + i));
      second = _mm_crc32_u64(second, word_at(data + kLane + i));
      third = _mm_crc32_u64(third, word_at(data + 2 * kLane + i));
    }
    rest = product(kShiftByTwo, static_cast<std::uint32_t>(first)) ^
           product(kShiftByLane, static_cast<std::uint32_t>(second)) ^
           static_cast<std::uint32_t>(third);
  }
  std::uint64_t wide = rest;
  for (; bytes >= kWord; bytes -= kWord, data += kWord) {
    wide = _mm_crc32_u64(wide, word_at(data));
  }
  rest = static_cast<std::uint32_t>(wide);
  for (; bytes > 0; --bytes) rest = _mm_crc32_u8(rest, *data++);
  return rest;
}
#endif

}  // namespace

std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t before) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction)
    return ~by_instruction(~before, static_cast<const unsigned char*>(data), bytes);
#endif
  return crc32c_by_tables(data, bytes, before);
}

std::uint32_t crc32c_by_tables(const void* data, std::size_t bytes, std::uint32_t before) {
  return ~Tables::remainder(~before, static_cast<const unsigned char*>(data), bytes);
}

std::uint32_t crc32c_of_both(std::uint32_t first, std::uint32_t second,
                             std::uint64_t bytes_of_second) {
  return product(shift_by(bytes_of_second), first) ^ second;
}

}  // namespace demi
