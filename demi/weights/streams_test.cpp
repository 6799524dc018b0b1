// Copies on a device with streams, without one: streams_testing.h. On a GPU:
// optim/gpu_copies_test.cpp.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "demi/weights/mutation_hook.h"
#include "demi/weights/step_targets.h"
#include "demi/weights/streams_testing.h"
#include "demi/weights/testing.h"
#include "demi/weights/weights.h"

namespace demi::weights {
namespace {

using testing::expect_right;
using Ids = std::set<c10::StreamId>;
using Waits = std::vector<std::pair<c10::StreamId, c10::StreamId>>;

class StreamsTest : public testing::Weights {
 protected:
  void TearDown() override {
    set_captures_step(false);
    drop();
    EXPECT_EQ(streams.events_alive(), 0);
    testing::Weights::TearDown();
  }
  const void* use_on(c10::StreamId stream, const at::Tensor& p) {
    streams.use(stream);
    return low_precision(p, torch::kBFloat16).const_data_ptr();
  }
  testing::FakeStreams streams;
};

TEST_F(StreamsTest, AnotherStreamWaitsOnceForTheCast) {
  auto p = owned_parameter();
  const void* memory = use_on(1, p);
  use_on(1, p);
  EXPECT_EQ(streams.waits(), Waits());
  EXPECT_EQ(streams.users_of(memory), Ids()) << "the stream that allocated it needs no mention";
  EXPECT_EQ(use_on(2, p), memory);
  EXPECT_EQ(streams.waits(), (Waits{{2, 1}}));
  EXPECT_EQ(streams.users_of(memory), Ids{2});
  use_on(2, p);
  use_on(1, p);
  EXPECT_EQ(streams.waits(), Waits());
  use_on(3, p);
  EXPECT_EQ(streams.waits(), (Waits{{3, 1}}));
  EXPECT_EQ(streams.users_of(memory), (Ids{2, 3}));
  EXPECT_EQ(stats().casts, 1);
}

TEST_F(StreamsTest, SoDoesAViewAndAnUnownedWeight) {
  auto p = parameter();
  enter_region();
  use_on(1, p);
  use_on(2, p.t());
  EXPECT_EQ(streams.waits(), (Waits{{2, 1}}));
  leave_region();
}

TEST_F(StreamsTest, OnTheDefaultStreamAnEventIsMadeOnlyWhereAnotherStreamComes) {
  auto p = owned_parameter();
  for (int i = 0; i < 3; ++i) {
    use_on(0, p);
    p.data().add_(1);
  }
  use_on(0, p);
  EXPECT_EQ(streams.events_made(), 0);
  use_on(1, p);
  use_on(2, p);
  EXPECT_EQ(streams.events_made(), 1);
  EXPECT_EQ(streams.waits(), (Waits{{1, 0}, {2, 0}}));
}

TEST_F(StreamsTest, ANewCastIsWaitedForAnew) {
  auto p = owned_parameter();
  use_on(1, p);
  use_on(2, p);
  streams.waits();
  p.data().add_(1);
  use_on(2, p);
  EXPECT_EQ(streams.waits(), Waits());
  use_on(1, p);
  EXPECT_EQ(streams.waits(), (Waits{{1, 2}}));
  expect_right(p, "after");
}

TEST_F(StreamsTest, AStepOnAnotherStreamWritesAfterTheCast) {
  auto p = owned_parameter();
  const void* memory = use_on(1, p);
  StepTargets step({p});
  streams.use(2);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(step.begin()[0].copy_count, 1);
    step.finish();
  }
  EXPECT_EQ(streams.waits(), (Waits{{2, 1}})) << "once";
  EXPECT_EQ(streams.users_of(memory), Ids{2});
  use_on(1, p);
  EXPECT_EQ(streams.waits(), Waits()) << "who uses a weight after a step orders that himself";
}

TEST_F(StreamsTest, AStreamThatRefillsAGraphsMemoryIsOneOfItsUsers) {
  auto p = owned_parameter();
  const void* memory = use_on(1, p);
  StepTargets step({p});
  step.begin(/*captured=*/true);
  step.finish();
  drop();
  EXPECT_EQ(use_on(2, p), memory);
  EXPECT_EQ(streams.users_of(memory), Ids{2});
}

TEST_F(StreamsTest, NobodyAsksWhetherTheDefaultStreamIsCaptured) {
  auto p = owned_parameter();
  for (int i = 0; i < 3; ++i) use_on(0, p);
  EXPECT_EQ(streams.questions(), 0);
  use_on(1, p);
  EXPECT_EQ(streams.questions() > 0, hook_is_free()) << "before LibTorch 2.15 there is no answer";
}

class CapturedStreamTest : public StreamsTest {
 protected:
  void SetUp() override {
    if (!hook_is_free()) GTEST_SKIP() << "LibTorch before 2.15 does not know that it captures";
    StreamsTest::SetUp();
  }
  void TearDown() override {
    streams.capture(-1);
    if (hook_is_free()) StreamsTest::TearDown();
  }
};

TEST_F(CapturedStreamTest, EveryUseRecordsACast) {
  auto p = owned_parameter();
  const void* memory = use_on(1, p);
  streams.capture(1);
  for (int i = 0; i < 2; ++i) EXPECT_NE(use_on(1, p), memory);
  p.data().add_(1);
  use_on(1, p);
  EXPECT_EQ(stats().casts, 1) << "what is recorded is not kept";
  streams.capture(-1);
  expect_right(p, "after the capture");
}

TEST_F(CapturedStreamTest, ACapturedStepLetsTheForwardReadAValidCopy) {
  set_captures_step(true);
  auto p = owned_parameter();
  const void* memory = use_on(1, p);
  streams.capture(1);
  EXPECT_EQ(use_on(1, p), memory);
  p.data().add_(1);
  use_on(1, p);
  EXPECT_EQ(stats().casts, 1) << "a stale one is cast in the graph, and that is not kept";
  streams.capture(-1);
  EXPECT_EQ(use_on(1, p), low_precision(p, torch::kBFloat16).const_data_ptr());
  EXPECT_EQ(stats().casts, 2);
  expect_right(p, "after the capture");
}

TEST_F(CapturedStreamTest, ACaptureWaitsForNothingOutside) {
  set_captures_step(true);
  auto p = owned_parameter();
  const void* memory = use_on(1, p);
  streams.capture(2);
  EXPECT_NE(use_on(2, p), memory) << "cast in the graph";
  StepTargets step({p});
  EXPECT_EQ(step.begin(/*captured=*/true)[0].copies[0].data, memory);
  step.finish();
  EXPECT_EQ(streams.waits(), Waits());
  EXPECT_EQ(streams.users_of(memory), Ids{2});
}

}  // namespace
}  // namespace demi::weights
