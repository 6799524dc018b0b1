#include "demi/core/crc32c.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace demi {
namespace {

std::uint32_t by_tables(const std::string& text) {
  return crc32c_by_tables(text.data(), text.size());
}

TEST(Crc32c, VectorsOfRfc3720B4) {
  std::string rising, falling;
  for (int i = 0; i < 32; ++i) rising += static_cast<char>(i);
  for (int i = 31; i >= 0; --i) falling += static_cast<char>(i);
  const std::vector<std::pair<std::string, std::uint32_t>> known = {
      {std::string(32, '\0'), 0x8A9136AAU},
      {std::string(32, '\xFF'), 0x62A8AB43U},
      {rising, 0x46DD794EU},
      {falling, 0x113FDB5CU},
      {"123456789", 0xE3069283U},  // the check value of every CRC catalogue
      {"", 0U}};
  for (const auto& [text, sum] : known) {
    EXPECT_EQ(crc32c(text), sum);
    EXPECT_EQ(by_tables(text), sum);
  }
}

std::string some_text(std::size_t bytes) {
  std::string text;
  for (std::uint32_t i = 1; text.size() < bytes; i = i * 1664525 + 1013904223)
    text += static_cast<char>(i >> 24);
  return text;
}

TEST(Crc32c, OfPiecesIsThatOfTheWholeWhereverItIsCut) {
  const std::string text = some_text(67);
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    const char* rest = text.data() + cut;
    const std::size_t left = text.size() - cut;
    EXPECT_EQ(crc32c(rest, left, crc32c(text.data(), cut)), crc32c(text)) << cut;
    EXPECT_EQ(crc32c_by_tables(rest, left, crc32c(text.data(), cut)), crc32c(text)) << cut;
    EXPECT_EQ(crc32c_of_both(crc32c(text.data(), cut), crc32c(rest, left), left), crc32c(text))
        << cut;
  }
  // A piece of a length that differs from a short one in its high bits alone.
  const std::string zeros((std::size_t{1} << 21) + 5, '\0');
  EXPECT_EQ(crc32c_of_both(crc32c(text), crc32c(zeros), zeros.size()), crc32c(text + zeros));
}

// The instruction takes long texts in three lanes of 8192 bytes; the tables do not.
TEST(Crc32c, OfALongTextIsThatOfTheTables) {
  const std::string text = some_text(100'003);
  const std::uint32_t before = 0x12345678;
  for (const std::size_t bytes : {24575, 24576, 24577, 49151, 49152, 65536, 100'003})
    EXPECT_EQ(crc32c(text.data(), bytes, before), crc32c_by_tables(text.data(), bytes, before))
        << bytes;
}

TEST(Crc32c, DiffersAfterEveryFlipOfABitAndEveryTwo) {
  const std::string text = some_text(40);
  const auto flipped = [](std::string copy, std::size_t bit) {
    copy[bit / 8] = static_cast<char>(copy[bit / 8] ^ (1 << (bit % 8)));
    return copy;
  };
  for (std::size_t first = 0; first < 8 * text.size(); ++first) {
    const std::string once = flipped(text, first);
    EXPECT_NE(crc32c(once), crc32c(text)) << first;
    for (std::size_t second = 0; second < first; ++second)
      EXPECT_NE(crc32c(flipped(once, second)), crc32c(text)) << first << " " << second;
  }
}

}  // namespace
}  // namespace demi
