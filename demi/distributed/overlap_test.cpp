// When buckets are sent, in which order, and how large: while backward computes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "demi/distributed/distributed_data_parallel.h"
#include "demi/distributed/process_group.h"
#include "demi/distributed/ranks_testing.h"
#include "demi/distributed/reducer.h"
#include "demi/weights/streams_testing.h"

namespace demi::distributed {
namespace {

using demi::testing::on_ranks;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The order of what happens, which no load of the machine changes: the engine computes the
// gradients of the last layers before it has those of the first.
TEST(Overlap, TheFirstBucketIsSentBeforeBackwardEnds) {
  const auto errors = on_ranks(2, [](ProcessGroup& group) {
    torch::nn::Sequential model;
    for (int i = 0; i < 4; ++i)
      model->push_back(torch::nn::Linear(torch::nn::LinearOptions(32, 32).bias(false)));
    DistributedOptions options;
    options.bucket_bytes = options.first_bucket_bytes = 32 * 32 * 4;  // one a layer
    const DistributedDataParallel parallel(*model, group, options);
    for (const bool plans : {true, false}) {
      const auto began = std::chrono::steady_clock::now();
      model->forward(torch::ones({2, 32})).sum().backward();
      const auto now = std::chrono::steady_clock::now();
      const Reduced& reduced = parallel.last_reduced();
      ASSERT_EQ(reduced.planned, plans);
      ASSERT_EQ(reduced.sent.size(), 4U);
      ASSERT_EQ(reduced.buckets, 4);
      std::int64_t bytes = 0;
      for (std::size_t b = 0; b < 4; ++b) {
        const SentBucket& bucket = reduced.sent[b];
        bytes += bucket.bytes;
        EXPECT_LE(began, bucket.sent);
        EXPECT_LE(bucket.sent, bucket.ended);
        EXPECT_LE(bucket.ended, reduced.averaged);
        // The last one carries the flags, which are known at the end.
        EXPECT_EQ(bucket.sent < reduced.backward_ended, !plans && b < 3) << b;
      }
      EXPECT_EQ(bytes, reduced.bytes);
      EXPECT_LE(reduced.averaged, now);
    }
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

// Stream 1 opens the bucket and packs, stream 2 packs, stream 0 sends at the end.
TEST(Overlap, ABucketIsSentAfterAllStreamsThatFilledIt) {
  const auto errors = on_ranks(1, [](ProcessGroup& group) {
    weights::testing::FakeStreams streams;
    std::vector<at::Tensor> parameters{torch::zeros(2).requires_grad_(),
                                       torch::zeros(2).requires_grad_()};
    for (at::Tensor& parameter : parameters) parameter.mutable_grad() = torch::ones(2);
    Reducer reducer(parameters, {}, group, {});
    using Waits = std::vector<std::pair<c10::StreamId, c10::StreamId>>;
    for (const bool plans : {true, false}) {
      streams.use(1);
      const auto round = reducer.on_gradient(1);
      streams.use(2);
      reducer.on_gradient(0);
      streams.use(0);
      reducer.finish();
      ASSERT_EQ(reducer.reduced().planned, plans);
      ASSERT_EQ(reducer.reduced().buckets, 1);
      // (who waits, for whom)
      EXPECT_EQ(streams.waits(), plans ? Waits() : (Waits{{2, 1}, {0, 1}, {0, 2}}));
      EXPECT_EQ(streams.events_alive(), 0);
    }
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

std::int64_t bytes_of_bucket(std::int64_t elements, std::int64_t parameters) {
  return (elements + parameters + 3) * 4;  // FP32 gradients, a flag each, three of the round
}

std::vector<std::int64_t> bytes_sent(const Reduced& reduced) {
  std::vector<std::int64_t> all;
  for (const SentBucket& bucket : reduced.sent) all.push_back(bucket.bytes);
  return all;
}

// Registered as a, b, c, and used as c, a, b.
struct UsedInAnotherOrder : torch::nn::Module {
  torch::nn::Linear of(const char* name, int64_t in, int64_t out) {
    return register_module(name, torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false)));
  }
  torch::nn::Linear a = of("a", 16, 24), b = of("b", 24, 4), c = of("c", 8, 16);
};

// The last layer that was used has its gradient first, whatever it was registered as.
TEST(Overlap, BucketsFollowTheOrderInWhichGradientsAreReady) {
  const auto errors = on_ranks(2, [](ProcessGroup& group) {
    UsedInAnotherOrder model;
    DistributedOptions options;
    options.bucket_bytes = options.first_bucket_bytes = 1;  // one a layer
    const DistributedDataParallel parallel(model, group, options);
    for (int step = 0; step < 2; ++step)
      model.b(model.a(model.c(torch::ones({2, 8})))).sum().backward();
    ASSERT_FALSE(parallel.last_reduced().planned);
    EXPECT_THAT(bytes_sent(parallel.last_reduced()),
                ElementsAre(bytes_of_bucket(24 * 4, 1), bytes_of_bucket(16 * 24, 1),
                            bytes_of_bucket(8 * 16, 1)));
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

// The first bucket has one of the four layers, and three are left: two of them do not wait.
TEST(Overlap, LittleIsSentAfterBackward) {
  const auto errors = on_ranks(2, [](ProcessGroup& group) {
    torch::nn::Sequential model;
    for (int i = 0; i < 4; ++i)
      model->push_back(torch::nn::Linear(torch::nn::LinearOptions(32, 32).bias(false)));
    constexpr std::int64_t kLayer = 32 * 32;
    DistributedOptions options;
    options.first_bucket_bytes = kLayer * 4;
    options.bucket_bytes = 4 * kLayer * 4;
    const DistributedDataParallel parallel(*model, group, options);
    for (int step = 0; step < 2; ++step) model->forward(torch::ones({2, 32})).sum().backward();
    const Reduced& reduced = parallel.last_reduced();
    EXPECT_THAT(bytes_sent(reduced),
                ElementsAre(bytes_of_bucket(kLayer, 1), bytes_of_bucket(2 * kLayer, 2),
                            bytes_of_bucket(kLayer, 1)));
    ASSERT_EQ(reduced.sent.size(), 3U);
    EXPECT_LT(reduced.sent[1].sent, reduced.backward_ended);
    EXPECT_GE(reduced.sent[2].sent, reduced.backward_ended);
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

}  // namespace
}  // namespace demi::distributed
