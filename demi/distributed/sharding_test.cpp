#include "demi/distributed/sharding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace demi::distributed {
namespace {

using Sizes = std::vector<std::int64_t>;

std::int64_t greatest_share(const Sizes& sizes, const std::vector<int>& owners, int ranks) {
  Sizes load(static_cast<std::size_t>(ranks));
  for (std::size_t i = 0; i < sizes.size(); ++i)
    load[static_cast<std::size_t>(owners[i])] += sizes[i];
  return *std::max_element(load.begin(), load.end());
}

// Over all ways to give each tensor to a rank.
std::int64_t least_possible(const Sizes& sizes, int ranks) {
  std::vector<int> owners(sizes.size());
  std::int64_t least = greatest_share(sizes, owners, ranks);
  while (true) {
    std::size_t digit = 0;
    while (digit < owners.size() && ++owners[digit] == ranks) owners[digit++] = 0;
    if (digit == owners.size()) return least;
    least = std::min(least, greatest_share(sizes, owners, ranks));
  }
}

// Graham's example of the bound: 11/9 of the least possible for 3 ranks.
TEST(Shares, MeetGrahamsBoundAtItsWorstCase) {
  const Sizes sizes{5, 5, 4, 4, 3, 3, 3};
  EXPECT_EQ(least_possible(sizes, 3), 9);
  EXPECT_EQ(greatest_share(sizes, owners_of_tensors(sizes, 3), 3), 11);
}

TEST(Shares, StayWithinGrahamsBound) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 200; ++trial) {
    const int ranks = 2 + trial % 3;
    Sizes sizes;
    for (int i = 0; i < 7; ++i) sizes.push_back(static_cast<std::int64_t>(random() % 100));
    const double bound =
        (4.0 / 3 - 1.0 / (3 * ranks)) * static_cast<double>(least_possible(sizes, ranks));
    EXPECT_LE(static_cast<double>(greatest_share(sizes, owners_of_tensors(sizes, ranks), ranks)),
              bound + 1e-9);
  }
}

TEST(Shares, GiveTheLargestTensorFirst) {
  EXPECT_EQ(owners_of_tensors({1, 8, 1, 4, 2}, 2), (std::vector<int>{1, 0, 1, 1, 1}));
  EXPECT_EQ(owners_of_tensors({6, 6, 6}, 3), (std::vector<int>{0, 1, 2}));
}

TEST(Shares, MayBeEmpty) {
  EXPECT_EQ(owners_of_tensors({5}, 4), std::vector<int>{0});
  EXPECT_TRUE(owners_of_tensors({}, 2).empty());
  EXPECT_EQ(owners_of_tensors({3, 0, 2}, 1), (std::vector<int>{0, 0, 0}));
}

}  // namespace
}  // namespace demi::distributed
