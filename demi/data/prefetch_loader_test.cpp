#include "demi/data/prefetch_loader.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

#include "demi/core/error.h"
#include "demi/core/wait_until_testing.h"
#include "demi/data/tensor_loader.h"

namespace demi::data {
namespace {

std::shared_ptr<TensorLoader> rows(int64_t count) {
  return std::make_shared<TensorLoader>(at::arange(count), at::arange(count).neg(),
                                        OrderOptions{.batch_size = 4, .shuffle = true, .seed = 1});
}

/// Says how many threads a batch was made with, takes its time, and fails where it is told.
class Slow : public Loader {
 public:
  explicit Slow(std::chrono::milliseconds time, int64_t fails = -1) : time_(time), fails_(fails) {}
  int64_t examples() const override { return 10; }
  int64_t batches() const override { return 10; }
  Batch batch(int64_t epoch, int64_t position) const override {
    begun++;
    if (position == fails_) throw std::runtime_error("broken");
    std::this_thread::sleep_for(time_);  // how long a batch takes
    made++;
    return {.input = at::tensor({epoch, position}, at::kLong),
            .target = at::scalar_tensor(at::get_num_threads()),
            .lengths = {}};
  }
  mutable std::atomic<int> begun = 0, made = 0;

 private:
  std::chrono::milliseconds time_;
  int64_t fails_;
};

TEST(PrefetchLoader, GivesTheInnerLoadersBatches) {
  for (int64_t workers : {1, 3}) {
    const auto inner = rows(22);
    const PrefetchLoader loader(inner, {.workers = workers, .depth = 4});
    EXPECT_EQ(loader.batches(), 6);
    for (int64_t epoch = 0; epoch < 3; ++epoch)
      for (int64_t position = 0; position < 6; ++position) {
        const Batch seen = loader.batch(epoch, position), expected = inner->batch(epoch, position);
        EXPECT_TRUE(at::equal(seen.input, expected.input));
        EXPECT_TRUE(at::equal(seen.target, expected.target));
      }
  }
}

TEST(PrefetchLoader, FollowsJumps) {
  const PrefetchLoader loader(std::make_shared<Slow>(std::chrono::milliseconds(0)),
                              {.workers = 2, .depth = 3});
  for (auto [epoch, position] :
       {std::pair{0, 0}, {0, 1}, {5, 7}, {5, 8}, {5, 7}, {0, 0}, {0, 9}, {1, 0}}) {
    const Batch batch = loader.batch(epoch, position);
    EXPECT_EQ(batch.input[0].item<int64_t>(), epoch);
    EXPECT_EQ(batch.input[1].item<int64_t>(), position);
  }
}

TEST(PrefetchLoader, WorksAheadOnOneCoreAThread) {
  const auto inner = std::make_shared<Slow>(std::chrono::milliseconds(1));
  const PrefetchLoader loader(inner, {.depth = 3});
  loader.batch(0, 0);
  EXPECT_TRUE(wait_until([&] { return inner->made >= 4; }));
  EXPECT_EQ(inner->made, 4);
  EXPECT_EQ(loader.batch(0, 1).target.item<int>(), 1);
}

/// Makes its batches in parallel, and says on how many threads.
class InParallel : public Loader {
 public:
  int64_t examples() const override { return 10; }
  int64_t batches() const override { return 10; }
  Batch batch(int64_t, int64_t) const override {
    std::mutex mutex;
    std::set<std::thread::id> threads;
    at::parallel_for(0, 64, 1, [&](int64_t, int64_t) {
      const std::lock_guard lock(mutex);
      threads.insert(std::this_thread::get_id());
    });
    made++;
    return {.input = at::scalar_tensor(static_cast<int64_t>(threads.size()), at::kLong)};
  }
  mutable std::atomic<int> made = 0;
};

TEST(PrefetchLoader, WorksOnOneCoreAThreadWhereANumberIsSet) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "TSan does not see where a parallel region of GCC's OpenMP begins and ends";
#endif
  const int before = at::get_num_threads();
  at::set_num_threads(3);
  const auto inner = std::make_shared<InParallel>();
  EXPECT_EQ(inner->batch(0, 0).input.item<int64_t>(), 3);
  {
    const PrefetchLoader loader(inner, {.depth = 3});
    loader.batch(0, 0);
    EXPECT_TRUE(wait_until([&] { return inner->made >= 1 + 4; }));
    for (int64_t position : {1, 2, 3})
      EXPECT_EQ(loader.batch(0, position).input.item<int64_t>(), 1) << position;
  }
  at::set_num_threads(before);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// A stack for each of so many threads is more than this process may have.
TEST(PrefetchLoader, SaysHowManyThreadsThereAre) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t in_use = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
  const rlimit tight{.rlim_cur = in_use + (rlim_t{100} << 20), .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &tight), 0);
  std::string said = "nothing";
  try {
    const PrefetchLoader loader(rows(22), {.workers = 4'000});
  } catch (const UsageError& error) {
    said = error.what();
  }
  EXPECT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_NE(said.find("4000 workers"), std::string::npos) << said;
  EXPECT_NE(said.find("here and now"), std::string::npos) << said;
}
#endif

// For ThreadSanitizer: the caller and a worker meet at one slot nowhere else.
TEST(PrefetchLoader, WaitsForABatchThatAWorkerHasBegun) {
  const auto inner = std::make_shared<Slow>(std::chrono::milliseconds(20));
  const PrefetchLoader loader(inner, {.depth = 1});
  for (int64_t position = 0; position < 4; ++position) {
    EXPECT_EQ(loader.batch(0, position).input[1].item<int64_t>(), position);
    EXPECT_TRUE(wait_until([&] { return inner->begun >= position + 2; }));
  }
}

TEST(PrefetchLoader, MeasuresHowLongItLetOneWait) {
  const PrefetchLoader loader(std::make_shared<Slow>(std::chrono::milliseconds(20)), {.depth = 1});
  EXPECT_EQ(loader.seconds_waited(), 0);
  loader.batch(0, 0);
  EXPECT_GE(loader.seconds_waited(), 0.02);
}

TEST(PrefetchLoader, GivesAnErrorToWhoAsksForThatBatch) {
  const PrefetchLoader loader(std::make_shared<Slow>(std::chrono::milliseconds(0), /*fails=*/2),
                              {.depth = 4});
  loader.batch(0, 0);
  loader.batch(0, 1);
  EXPECT_THROW(loader.batch(0, 2), std::runtime_error);
  EXPECT_EQ(loader.batch(0, 3).input[1].item<int64_t>(), 3);
}

TEST(PrefetchLoader, MakesNothingMoreOnceItIsGone) {
  for (int i = 0; i < 20; ++i) {
    const auto inner = std::make_shared<Slow>(std::chrono::milliseconds(1));
    PrefetchLoader(inner, {.workers = 2, .depth = 3}).batch(0, 0);
    const int made = inner->made;
    EXPECT_LE(made, 1 + 3);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // in which more would be made
    EXPECT_EQ(inner->made, made);
  }
}

TEST(PrefetchLoader, RefusesWhatMakesNoSense) {
  EXPECT_THROW(PrefetchLoader(rows(4), {.workers = 0}), UsageError);
  EXPECT_THROW(PrefetchLoader(rows(4), {.depth = 0}), UsageError);
  EXPECT_THROW(PrefetchLoader(nullptr), UsageError);
}

TEST(TensorLoader, GivesViewsInOrderAndCopiesShuffled) {
  const at::Tensor input = at::arange(20).view({10, 2}), target = at::arange(10);
  const TensorLoader in_order(input, target, {.batch_size = 4});
  EXPECT_EQ(in_order.batch(0, 1).input.const_data_ptr(), input[4].const_data_ptr());
  EXPECT_EQ(in_order.batch(3, 2).target.numel(), 2);
  const TensorLoader shuffled(input, target, {.batch_size = 10, .shuffle = true});
  const Batch batch = shuffled.batch(0, 0);
  EXPECT_TRUE(at::equal(batch.input.select(1, 0), 2 * batch.target));
  EXPECT_FALSE(at::equal(batch.target, target));
}

TEST(TensorLoader, RefusesRowsThatDoNotMatch) {
  EXPECT_THROW(TensorLoader(at::ones({3}), at::ones({2})), UsageError);
  EXPECT_THROW(TensorLoader(at::ones({}), at::ones({2})), UsageError);
  EXPECT_THROW(TensorLoader(at::Tensor(), at::ones({2})), UsageError);
}

TEST(SyntheticRows, AreAFunctionOfTheSeed) {
  const SyntheticRows one = synthetic_rows(3, 4, 5, 7), same = synthetic_rows(3, 4, 5, 7),
                      other = synthetic_rows(3, 4, 5, 8);
  EXPECT_EQ(one.target.sizes(), (std::vector<int64_t>{3, 5}));
  EXPECT_TRUE(at::equal(one.input, same.input));
  EXPECT_FALSE(at::equal(one.input, other.input));
}

}  // namespace
}  // namespace demi::data
