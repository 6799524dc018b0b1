#include "lab/data/text_loader.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>

#include "demi/core/error.h"

namespace demi::data {
namespace {

/// Text i holds its own number, 1 + (7 i mod 23) times.
TextSet numbered(int64_t count) {
  std::vector<int32_t> tokens;
  std::vector<int64_t> offsets{0}, labels;
  for (int64_t i = 0; i < count; ++i) {
    tokens.insert(tokens.end(), static_cast<std::size_t>(1 + 7 * i % 23),
                  static_cast<int32_t>(i + 1));
    offsets.push_back(static_cast<int64_t>(tokens.size()));
    labels.push_back(i % 2);
  }
  return {.tokens = at::tensor(tokens, at::kInt),
          .offsets = at::tensor(offsets, at::kLong),
          .labels = at::tensor(labels, at::kLong),
          .name = "numbered"};
}

void expect_rows_are_texts(const Batch& batch, std::multiset<int64_t>& seen) {
  ASSERT_EQ(batch.input.size(1), batch.lengths.max().item<int64_t>());
  for (int64_t row = 0; row < batch.input.size(0); ++row) {
    const int64_t number = batch.input[row][0].item<int64_t>(),
                  length = batch.lengths[row].item<int64_t>();
    EXPECT_EQ(length, 1 + 7 * (number - 1) % 23);
    EXPECT_TRUE(at::all(batch.input[row].slice(0, 0, length) == number).item<bool>());
    EXPECT_TRUE(at::all(batch.input[row].slice(0, length) == 0).item<bool>());
    EXPECT_EQ(batch.target[row][0].item<float>(), static_cast<float>((number - 1) % 2));
    seen.insert(number);
  }
}

TEST(TextLoader, ShowsEveryTextOnceAnEpochPadded) {
  const TextLoader loader(
      numbered(101), 2,
      {.order = {.batch_size = 8, .shuffle = true, .seed = 4}, .bucket_batches = 3});
  EXPECT_EQ(loader.batches(), 13);
  for (int64_t epoch : {0, 5}) {
    std::multiset<int64_t> seen;
    for (int64_t position = 0; position < loader.batches(); ++position) {
      const Batch batch = loader.batch(epoch, position);
      EXPECT_EQ(batch.target.sizes(), (std::vector<int64_t>{position == 12 ? 5 : 8, 1}));
      expect_rows_are_texts(batch, seen);
    }
    EXPECT_EQ(seen.size(), 101U);
    EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), 101U);
  }
}

// The texts that an epoch leaves out, or puts into its short batch, are chosen before they are
// sorted.
TEST(TextLoader, NoTextIsAlwaysLeftOut) {
  for (const int64_t bucket : {4, 50}) {
    const TextLoader loader(
        numbered(100), 2,
        {.order = {.batch_size = 8, .shuffle = true, .seed = 4, .drop_last = true},
         .bucket_batches = bucket});
    ASSERT_EQ(loader.batches(), 12);
    std::multiset<int64_t> seen;
    for (int64_t epoch = 0; epoch < 30; ++epoch)
      for (int64_t position = 0; position < 12; ++position)
        expect_rows_are_texts(loader.batch(epoch, position), seen);
    // 96 of 100 an epoch: with 28.8 expected of 30 each is below 18 with a probability of 1e-8.
    for (int64_t number = 1; number <= 100; ++number) EXPECT_GE(seen.count(number), 18U) << number;
  }
}

TEST(TextLoader, AShortBatchHoldsTextsOfAnyLength) {
  const TextLoader loader(numbered(100), 2,
                          {.order = {.batch_size = 8, .shuffle = true, .seed = 4}});
  double total = 0;
  for (int64_t epoch = 0; epoch < 100; ++epoch)
    total += loader.batch(epoch, 12).lengths.to(at::kDouble).mean().item<double>();
  // Lengths 1 to 23, standard deviation 6.6: 400 of them have a mean of 12 within 5 x 6.6 / 20.
  EXPECT_NEAR(total / 100, 12, 1.7);
}

TEST(TextLoader, UnshuffledLeavesOutTheLastOfTheSet) {
  const TextLoader loader(numbered(101), 2, {.order = {.batch_size = 8, .drop_last = true}});
  std::multiset<int64_t> seen;
  for (int64_t position = 0; position < loader.batches(); ++position)
    expect_rows_are_texts(loader.batch(0, position), seen);
  EXPECT_EQ(seen.size(), 96U);
  EXPECT_EQ(*seen.rbegin(), 96);
}

TEST(TextLoader, ABatchOfAllTextsMayBeSaidInAnyNumber) {
  for (const int64_t batch : {int64_t{101}, int64_t{1} << 62, INT64_MAX}) {
    const TextLoader loader(numbered(101), 2,
                            {.order = {.batch_size = batch, .shuffle = true, .seed = 4}});
    ASSERT_EQ(loader.batches(), 1) << batch;
    std::multiset<int64_t> seen;
    expect_rows_are_texts(loader.batch(2, 0), seen);
    EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), 101U) << batch;
  }
}

int64_t padding(const TextLoader& loader) {
  int64_t total = 0;
  for (int64_t position = 0; position < loader.batches(); ++position) {
    const Batch batch = loader.batch(0, position);
    total += batch.input.numel() - batch.lengths.sum().item<int64_t>();
  }
  return total;
}

TEST(TextLoader, PutsTextsOfOneLengthTogether) {
  const OrderOptions order{.batch_size = 8, .shuffle = true, .seed = 4};
  const int64_t alone =
      padding(TextLoader(numbered(400), 2, {.order = order, .bucket_batches = 1}));
  const int64_t bucketed =
      padding(TextLoader(numbered(400), 2, {.order = order, .bucket_batches = 50}));
  EXPECT_LT(10 * bucketed, alone);
  // Sorted as a whole there is no way to pad less: 23 lengths of 17 or 18 texts.
  EXPECT_LE(padding(TextLoader(numbered(400), 2, {.order = {.batch_size = 8}})), bucketed);
}

TEST(TextLoader, IsAFunctionOfSeedEpochAndPosition) {
  const TextLoaderOptions options{.order = {.batch_size = 8, .shuffle = true, .seed = 4},
                                  .bucket_batches = 3};
  const TextLoader one(numbered(101), 2, options), other(numbered(101), 2, options);
  one.batch(0, 3);
  EXPECT_TRUE(at::equal(one.batch(2, 5).input, other.batch(2, 5).input));
  EXPECT_FALSE(at::equal(one.batch(3, 5).lengths, other.batch(2, 5).lengths));
}

TEST(TextLoader, CutsTextsAndVocabulary) {
  const TextLoader loader(numbered(23), 3,
                          {.order = {.batch_size = 23}, .max_length = 6, .vocabulary_size = 10});
  const Batch batch = loader.batch(0, 0);
  EXPECT_EQ(batch.input.size(1), 6);
  EXPECT_EQ(batch.lengths.max().item<int64_t>(), 6);
  EXPECT_EQ(batch.input.max().item<int64_t>(), 9);
  EXPECT_EQ(batch.target.scalar_type(), at::kLong);  // three classes
}

TEST(TextLoader, SharesBatchesAmongRanks) {
  TextLoaderOptions options{
      .order = {.batch_size = 4, .shuffle = true, .seed = 4, .world_size = 2}};
  const TextLoader first(numbered(64), 2, options);
  options.order.rank = 1;
  const TextLoader second(numbered(64), 2, options);
  std::multiset<int64_t> seen;
  for (int64_t position = 0; position < first.batches(); ++position) {
    expect_rows_are_texts(first.batch(1, position), seen);
    expect_rows_are_texts(second.batch(1, position), seen);
  }
  EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), 64U);
}

TEST(TextLoader, RefusesWhatMakesNoSense) {
  EXPECT_THROW(TextLoader(numbered(4), 1, {}), UsageError);
  EXPECT_THROW(TextLoader(numbered(4), 2, {.max_length = -1}), UsageError);
  EXPECT_THROW(TextLoader(numbered(4), 2, {.vocabulary_size = -1}), UsageError);
  EXPECT_THROW(TextLoader(numbered(4), 2, {.bucket_batches = 0}), UsageError);
  for (const int64_t label : {-1, 2}) {
    TextSet set = numbered(4);
    set.labels[1] = label;
    EXPECT_THROW(TextLoader(set, 2, {}), UsageError) << label;
  }
}

}  // namespace
}  // namespace demi::data
