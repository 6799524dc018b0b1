#include "demi/data/order.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "demi/core/error.h"
#include "demi/data/random_bits.h"

namespace demi::data {
namespace {

std::vector<int64_t> epoch_of(const Order& order, int64_t epoch) {
  std::vector<int64_t> all;
  for (int64_t position = 0; position < order.batches(); ++position) {
    const at::Tensor indices = order.indices(epoch, position);
    const int64_t* p = indices.const_data_ptr<int64_t>();
    all.insert(all.end(), p, p + indices.numel());
  }
  return all;
}

std::vector<int64_t> sorted(std::vector<int64_t> values) {
  std::ranges::sort(values);
  return values;
}

std::vector<int64_t> counting(int64_t count) {
  std::vector<int64_t> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), 0);
  return values;
}

TEST(Order, ShowsEveryExampleOnceAnEpoch) {
  const Order order(10, {.batch_size = 4, .shuffle = true, .seed = 3});
  EXPECT_EQ(order.batches(), 3);
  EXPECT_EQ(order.examples(), 10);
  EXPECT_EQ(sorted(epoch_of(order, 0)), counting(10));
  EXPECT_EQ(order.indices(0, 2).numel(), 2);
}

TEST(Order, HasAnEpochBeforeTheFirst) {
  const Order order(10, {.batch_size = 4, .shuffle = true, .seed = 3});
  EXPECT_EQ(order.indices(-1, 0).numel(), 4);
}

TEST(Order, IsAFunctionOfSeedAndEpochAlone) {
  const Order a(1000, {.batch_size = 64, .shuffle = true, .seed = 3});
  const Order b(1000, {.batch_size = 100, .shuffle = true, .seed = 3});
  const std::vector<int64_t> seventh = epoch_of(a, 7);
  EXPECT_NE(epoch_of(a, 0), seventh);
  EXPECT_EQ(epoch_of(b, 7), seventh);  // with no epoch before it, in other batches
  EXPECT_NE(epoch_of(Order(1000, {.shuffle = true, .seed = 4}), 7), seventh);
}

TEST(Order, ShufflesUniformly) {
  // Every item stands in every place equally often: chi-square with 25 degrees of freedom, 99.99 %
  // quantile 62.0.
  constexpr int64_t kItems = 6, kEpochs = 6000;
  const Order order(kItems, {.batch_size = kItems, .shuffle = true, .seed = 1});
  std::vector<double> count(kItems * kItems, 0);
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const auto items = epoch_of(order, epoch);
    for (int64_t place = 0; place < kItems; ++place)
      ++count[static_cast<std::size_t>(place * kItems + items[static_cast<std::size_t>(place)])];
  }
  double chi_square = 0;
  const double expected = static_cast<double>(kEpochs) / kItems;
  for (double seen : count) chi_square += (seen - expected) * (seen - expected) / expected;
  EXPECT_LT(chi_square, 62.0);
}

TEST(Order, WithoutShufflingKeepsTheOrder) {
  EXPECT_EQ(epoch_of(Order(7, {.batch_size = 3}), 5), counting(7));
}

TEST(Order, DropsAShortLastBatchWhenAsked) {
  const Order order(10, {.batch_size = 4, .drop_last = true});
  EXPECT_EQ(order.batches(), 2);
  EXPECT_EQ(order.examples(), 8);
}

TEST(Order, LimitsEvenly) {
  EXPECT_EQ(epoch_of(Order(10, {.limit = 4}), 0), (std::vector<int64_t>{0, 2, 5, 7}));
  EXPECT_EQ(Order(10, {.limit = 40}).examples(), 10);
}

TEST(Order, RanksShareTheBatchOfOneProcess) {
  const OrderOptions two{.batch_size = 3, .shuffle = true, .seed = 5, .world_size = 2};
  OrderOptions second = two;
  second.rank = 1;
  const Order whole(14, {.batch_size = 6, .shuffle = true, .seed = 5}), first(14, two),
      other(14, second);
  ASSERT_EQ(first.batches(), 3);
  ASSERT_EQ(other.batches(), 3);
  for (int64_t position = 0; position < 3; ++position)
    EXPECT_TRUE(at::equal(at::cat({first.indices(2, position), other.indices(2, position)}),
                          whole.indices(2, position)));
}

// 17 examples in batches of 2 x 3: 6, 6, 5, of which the ranks have 1, 2, 2.
TEST(Order, KeepsAllExamplesOfSeveralRanks) {
  const OrderOptions alone{.batch_size = 6, .shuffle = true, .seed = 5};
  const Order whole(17, alone);
  std::vector<std::unique_ptr<Order>> held;
  for (int64_t rank = 0; rank < 3; ++rank) {
    held.push_back(std::make_unique<Order>(17, OrderOptions{.batch_size = 2,
                                                            .shuffle = true,
                                                            .seed = 5,
                                                            .rank = rank,
                                                            .world_size = 3,
                                                            .keep_all = true}));
    EXPECT_EQ(held.back()->batches(), 3) << rank;
    EXPECT_EQ(held.back()->all_examples(), 17) << rank;
    EXPECT_EQ(held.back()->examples(), rank == 0 ? 5 : 6) << rank;
  }
  for (int64_t position = 0; position < 3; ++position) {
    std::vector<at::Tensor> parts;
    int64_t place = whole.batch_start(position);
    for (const auto& order : held) {
      EXPECT_EQ(order->place(position), place);
      parts.push_back(order->indices(1, position));
      place += parts.back().numel();
    }
    EXPECT_TRUE(at::equal(at::cat(parts), whole.indices(1, position))) << position;
  }
}

TEST(Order, ARankWithoutAPartOfTheLastBatchHasOneBatchLess) {
  int64_t examples = 0;
  for (int64_t rank = 0; rank < 4; ++rank) {
    const Order order(9, {.batch_size = 2, .rank = rank, .world_size = 4, .keep_all = true});
    EXPECT_EQ(order.batches(), rank == 3 ? 2 : 1) << rank;
    examples += order.examples();
    EXPECT_EQ(std::ssize(epoch_of(order, 0)), order.examples());
  }
  EXPECT_EQ(examples, 9);
  const Order none(2, {.batch_size = 2, .rank = 0, .world_size = 4, .keep_all = true});
  EXPECT_EQ(none.batches(), 0);
  EXPECT_EQ(none.examples(), 0);
  EXPECT_EQ(none.all_examples(), 2);
}

TEST(Order, OfNothingHasNoBatches) {
  const Order order(0, {});
  EXPECT_EQ(order.batches(), 0);
  EXPECT_THROW(order.indices(0, 0), UsageError);
}

// (n + d - 1) / d and position x batch overflowed: 0 batches, and a run of nothing that ended well.
TEST(Order, ABatchOfAllExamplesMayBeSaidInAnyNumber) {
  for (const int64_t batch : {int64_t{10}, int64_t{11}, int64_t{1} << 62, INT64_MAX}) {
    const Order order(10, {.batch_size = batch, .shuffle = true, .seed = 3});
    ASSERT_EQ(order.batches(), 1) << batch;
    EXPECT_EQ(order.examples(), 10) << batch;
    EXPECT_EQ(sorted(epoch_of(order, 1)), counting(10)) << batch;
    const Order two(10, {.batch_size = batch, .shuffle = true, .seed = 3, .world_size = 2});
    EXPECT_EQ(two.examples(), 5) << batch;
    const Order whole_batches(9, {.batch_size = batch, .drop_last = true});
    EXPECT_EQ(whole_batches.batches(), 0) << batch;
    EXPECT_EQ(whole_batches.examples(), 0) << batch;
  }
}

TEST(Order, RefusesWhatMakesNoSense) {
  EXPECT_THROW(Order(10, {.batch_size = 0}), UsageError);
  EXPECT_THROW(Order(10, {.limit = -1}), UsageError);
  EXPECT_THROW(Order(10, {.rank = 2, .world_size = 2}), UsageError);
  EXPECT_THROW(Order(10, {.world_size = 0}), UsageError);
  EXPECT_THROW(Order(10, {}).indices(0, 1), UsageError);
  EXPECT_THROW(Order(10, {}).indices(0, -1), UsageError);
}

TEST(RandomBits, BoundsStayInside) {
  EXPECT_EQ(bounded(0, 7), 0);
  EXPECT_EQ(bounded(0xffffffff, 7), 6);
  EXPECT_EQ(bounded(0xffffffff, 1), 0);
}

}  // namespace
}  // namespace demi::data
