// When buckets are sent: while backward computes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <chrono>

#include "demi/distributed/distributed_data_parallel.h"
#include "demi/distributed/process_group.h"
#include "demi/distributed/ranks_testing.h"

namespace demi::distributed {
namespace {

using demi::testing::on_ranks;
using ::testing::Each;
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

}  // namespace
}  // namespace demi::distributed
