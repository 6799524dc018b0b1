#include "demi/core/crc32.h"

#include <gtest/gtest.h>

#include <string>

namespace demi {
namespace {

// The check value of this polynomial, as catalogues of checksums list it for "123456789".
TEST(Crc32, IsThatOfTheCatalogue) {
  EXPECT_EQ(crc32("123456789"), 0xCBF43926u);
  EXPECT_EQ(crc32(""), 0u);
}

TEST(Crc32, OfPiecesIsThatOfTheWhole) {
  const std::string text = "a text of no round length, longer than two words";
  for (std::size_t cut = 0; cut <= text.size(); ++cut)
    EXPECT_EQ(crc32(text.data() + cut, text.size() - cut, crc32(text.data(), cut)), crc32(text));
}

}  // namespace
}  // namespace demi
