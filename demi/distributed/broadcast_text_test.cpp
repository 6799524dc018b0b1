#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "demi/distributed/process_group.h"
#include "demi/distributed/ranks_testing.h"

namespace demi::distributed {
namespace {

using ::testing::Each;
using ::testing::IsEmpty;

TEST(BroadcastText, IsTheRootsOnEveryRank) {
  const std::string with_zeros("a\0b\n", 4), long_one(100'000, 'x');
  for (const std::string& text : {std::string(), with_zeros, long_one}) {
    for (int root = 0; root < 3; ++root) {
      const auto errors = demi::testing::on_ranks(3, [&](ProcessGroup& group) {
        EXPECT_EQ(broadcast_text(group.rank() == root ? text : "of another rank", root, group),
                  text);
      });
      EXPECT_THAT(errors, Each(IsEmpty()));
    }
  }
  const auto errors = demi::testing::on_ranks(
      1, [](ProcessGroup& group) { EXPECT_EQ(broadcast_text("alone", 0, group), "alone"); });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

}  // namespace
}  // namespace demi::distributed
