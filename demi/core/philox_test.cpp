#include "demi/core/philox.h"

#include <gtest/gtest.h>

namespace demi {
namespace {

// Known answers from Random123 1.09 (D. E. Shaw Research), tests/kat_vectors, lines "philox4x32
// 10".
TEST(Philox, GivesThePublishedAnswers) {
  using philox::Block;
  EXPECT_EQ(philox::generate({0, 0, 0, 0}, {0, 0}),
            (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox::generate({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      philox::generate({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

}  // namespace
}  // namespace demi
