#include "lab/data/token_windows.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <vector>

#include "demi/core/error.h"

namespace demi::data {
namespace {

// Token i is i, so that a window says where it begins.
TokenSpan counted(int64_t first, int64_t size) {
  std::vector<int32_t> tokens(static_cast<std::size_t>(first + size));
  std::iota(tokens.begin(), tokens.end(), 0);
  return {.source = tokens::in_memory(std::move(tokens)), .first = first, .size = size};
}

std::vector<int64_t> starts(const Batch& batch) {
  const at::Tensor first = batch.input.select(1, 0).contiguous();
  return {first.const_data_ptr<int64_t>(), first.const_data_ptr<int64_t>() + first.numel()};
}

TEST(RandomWindows, AreRunsOfTheSpanWithTheNextTokenAsTarget) {
  const RandomWindows loader(counted(5, 20), {.context = 4, .batch_size = 50, .batches = 3});
  EXPECT_EQ(loader.examples(), 150);
  std::set<int64_t> seen;
  for (int64_t position = 0; position < 3; ++position) {
    const Batch batch = loader.batch(1, position);
    EXPECT_EQ(batch.input.sizes(), (std::vector<int64_t>{50, 4}));
    EXPECT_TRUE(batch.target.equal(batch.input + 1));
    EXPECT_TRUE(batch.input.slice(1, 1).equal(batch.target.slice(1, 0, 3)));
    for (const int64_t start : starts(batch)) seen.insert(start);
  }
  EXPECT_EQ(*seen.begin(), 5);
  EXPECT_EQ(*seen.rbegin(), 20) << "its last target is the span's last token, 24";
  EXPECT_EQ(seen.size(), 16U) << "each place, of 150 draws";
}

TEST(RandomWindows, AreOfTheStepAloneHoweverLongAnEpochIs) {
  const TokenSpan tokens = counted(0, 1000);
  const RandomWindows longer(tokens, {.context = 8, .batch_size = 6, .batches = 10, .seed = 3});
  const RandomWindows shorter(tokens, {.context = 8, .batch_size = 6, .batches = 5, .seed = 3});
  const RandomWindows other(tokens, {.context = 8, .batch_size = 6, .batches = 5, .seed = 4});
  EXPECT_TRUE(longer.batch(0, 7).input.equal(shorter.batch(1, 2).input));
  EXPECT_FALSE(longer.batch(0, 7).input.equal(longer.batch(0, 6).input));
  EXPECT_FALSE(other.batch(1, 2).input.equal(shorter.batch(1, 2).input));
}

TEST(RandomWindows, RanksShareTheBatchOfOneProcess) {
  const TokenSpan tokens = counted(0, 1000);
  RandomWindowsOptions options{.context = 8, .batch_size = 6, .batches = 5};
  const at::Tensor whole = RandomWindows(tokens, options).batch(2, 3).input;
  options.batch_size = 2;
  options.world_size = 3;
  for (options.rank = 0; options.rank < 3; ++options.rank)
    EXPECT_TRUE(RandomWindows(tokens, options)
                    .batch(2, 3)
                    .input.equal(whole.slice(0, 2 * options.rank, 2 * options.rank + 2)));
}

TEST(RandomWindows, ALimitLeavesPlacesOverTheWholeSpan) {
  const RandomWindows loader(counted(0, 108),
                             {.context = 8, .batch_size = 100, .batches = 1, .limit = 4});
  const auto found = starts(loader.batch(0, 0));
  EXPECT_EQ(std::set<int64_t>(found.begin(), found.end()), (std::set<int64_t>{0, 25, 50, 75}));
}

TEST(RandomWindows, BadOptionsAreRefused) {
  const auto refused = [](int64_t size, const RandomWindowsOptions& options) {
    EXPECT_THROW(RandomWindows(counted(0, size), options), UsageError);
  };
  EXPECT_NO_THROW(RandomWindows(counted(0, 9), {.context = 8}));
  refused(8, {.context = 8});
  refused(0, {.context = 8});
  refused(9, {.context = 0});
  refused(9, {.context = 8, .batch_size = 0});
  refused(9, {.context = 8, .batches = 0});
  refused(9, {.context = 8, .limit = -1});
  refused(9, {.context = 8, .rank = 2, .world_size = 2});
  const RandomWindows loader(counted(0, 9), {.context = 8, .batches = 2});
  EXPECT_THROW(loader.batch(0, 2), UsageError);
  EXPECT_THROW(loader.batch(0, -1), UsageError);
}

// Each token but the first is a target once.
void expect_all_targets_once(int64_t size, int64_t context) {
  const ConsecutiveWindows loader(counted(3, size), context, {.batch_size = 2});
  std::multiset<int64_t> targets;
  for (int64_t position = 0; position < loader.batches(); ++position) {
    const Batch batch = loader.batch(0, position);
    const at::Tensor counts = batch.target.ne(-100);
    EXPECT_TRUE(batch.target.masked_select(counts).equal(batch.input.masked_select(counts) + 1));
    EXPECT_TRUE(batch.input.masked_select(~counts).eq(0).all().item<bool>());
    const at::Tensor counted_ones = batch.target.masked_select(counts);
    for (int64_t i = 0; i < counted_ones.numel(); ++i)
      targets.insert(counted_ones[i].item<int64_t>());
  }
  EXPECT_EQ(static_cast<int64_t>(targets.size()), size - 1) << size << " by " << context;
  EXPECT_EQ(*targets.begin(), 4);
  EXPECT_EQ(*targets.rbegin(), size + 2);
}

TEST(ConsecutiveWindows, HaveEachTokenAsATargetOnce) {
  for (const int64_t size : {2, 3, 8, 9, 10, 16, 17, 18, 100})
    for (const int64_t context : {1, 7, 8, 200}) expect_all_targets_once(size, context);
}

TEST(ConsecutiveWindows, AreSharedByRanks) {
  int64_t windows = 0;
  for (const int64_t rank : {0, 1, 2})
    windows +=
        ConsecutiveWindows(counted(0, 102), 10,
                           {.batch_size = 2, .rank = rank, .world_size = 3, .keep_all = true})
            .examples();
  EXPECT_EQ(windows, 11);
}

TEST(ConsecutiveWindows, BadOptionsAreRefused) {
  EXPECT_THROW(ConsecutiveWindows(counted(0, 1), 4, {}), UsageError);
  EXPECT_THROW(ConsecutiveWindows(counted(0, 9), 0, {}), UsageError);
  EXPECT_THROW(ConsecutiveWindows(counted(0, 9), 4, {.batch_size = 0}), UsageError);
}

}  // namespace
}  // namespace demi::data
