#include "demi/weights/overlap.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace demi::weights {
namespace {

using Pair = std::pair<std::size_t, std::size_t>;

TEST(Overlap, IsFoundWhereTwoHaveAByteInCommon) {
  const auto flat = torch::zeros({64});
  const auto other = torch::zeros({8});
  const auto part = [&](std::int64_t begin, std::int64_t length) {
    return flat.narrow(0, begin, length);
  };
  EXPECT_EQ(find_overlap({flat, other, flat.detach()}), Pair(0, 2));
  EXPECT_EQ(find_overlap({other, part(8, 8), part(0, 8), part(15, 2)}), Pair(1, 3));
  EXPECT_EQ(find_overlap({part(3, 1), other, flat}), Pair(0, 2)) << "one within the other";
  EXPECT_EQ(find_overlap({part(0, 8), part(8, 8).view({2, 4}), other}), std::nullopt);
  EXPECT_EQ(find_overlap({part(0, 8), part(4, 8).view(torch::kBFloat16)}), Pair(0, 1));
  EXPECT_EQ(find_overlap({part(0, 8), part(7, 2).view(torch::kBFloat16).narrow(0, 2, 2)}),
            std::nullopt);
}

TEST(Overlap, ABigOneDoesNotHideThatOthersMeetBehindIt) {
  const auto flat = torch::zeros({64});
  const auto rows = flat.view({8, 8});
  const auto left = rows.narrow(1, 0, 2), right = rows.narrow(1, 2, 6);
  EXPECT_EQ(find_overlap({left, right}), std::nullopt) << "they interleave";
  EXPECT_EQ(find_overlap({left, right, rows[5].narrow(0, 1, 1)}), Pair(0, 2));
  EXPECT_EQ(find_overlap({left, right, rows[5].narrow(0, 2, 1)}), Pair(1, 2));
  EXPECT_EQ(find_overlap({flat.slice(0, 0, 64, 2), flat.slice(0, 1, 64, 2)}), std::nullopt);
  EXPECT_EQ(find_overlap({flat.slice(0, 0, 64, 2), flat.slice(0, 1, 64, 3)}), Pair(0, 1));
}

TEST(Overlap, NothingOverlapsWhatHasNoMemoryOfItsOwn) {
  const auto p = torch::zeros({4});
  EXPECT_EQ(find_overlap({}), std::nullopt);
  EXPECT_EQ(find_overlap({p, p.narrow(0, 2, 0), torch::zeros({0}), torch::zeros({0})}),
            std::nullopt);
  EXPECT_EQ(find_overlap({p, at::_lazy_clone(p)}), std::nullopt);
  EXPECT_EQ(find_overlap({torch::zeros({}), torch::zeros({})}), std::nullopt);
}

}  // namespace
}  // namespace demi::weights
