// The state that threads inherit which LibTorch starts for work of a region: those of at::launch,
// and autograd's for a device, which have the state of backward()'s caller (the second kind here).
#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <future>
#include <thread>

#include "demi/autocast/autocast.h"
#include "demi/core/wait_until_testing.h"
#include "demi/weights/weights.h"

namespace demi {
namespace {

struct Seen {
  std::thread::id thread;
  torch::Dtype product, batched_product;
  std::int64_t casts;  // of one layer's parameters, used three times
};

Seen look(torch::nn::Linear& layer) {
  weights::reset_stats();
  for (int i = 0; i < 3; ++i) layer->forward(torch::ones({2, 4}));
  const auto casts = weights::stats().casts;
  const auto x = torch::ones({2, 2}), batch = torch::ones({1, 2, 2});
  return {std::this_thread::get_id(), torch::mm(x, x).scalar_type(),
          torch::bmm(batch, batch).scalar_type(), casts};
}

using Work = std::function<void()>;

void launch(const Work& work) {
  std::promise<void> done;
  at::launch([&] {
    work();
    done.set_value();
  });
  done.get_future().wait();
}

void as_autograd_does(const Work& work) {
  const at::ThreadLocalState state;
  std::thread([&] {
    const at::ThreadLocalStateGuard guard(state);
    work();
  }).join();
}

class Inherits : public testing::TestWithParam<void (*)(const Work&)> {
 protected:
  // The thread lets its state go a moment after its answer.
  void TearDown() override {
    EXPECT_TRUE(wait_until([] { return weights::stats().copies == 0; }));
  }
  Seen seen() {
    Seen there{};
    GetParam()([&] { there = look(layer_); });
    return there;
  }
  torch::nn::Linear layer_{4, 4};
};

TEST_P(Inherits, PolicyAndDtypeOfTheRegion) {
  OpPolicy policy;
  policy.set("mm", OpCategory::fp32);
  const Autocast region(torch::kCPU, AutocastOptions{.dtype = torch::kHalf, .policy = policy});
  const Seen there = seen();
  EXPECT_NE(there.thread, std::this_thread::get_id());
  EXPECT_EQ(there.product, torch::kFloat);
  EXPECT_EQ(there.batched_product, torch::kHalf);
}

TEST_P(Inherits, TheInnermostPolicyAndTheGlobalOneWhereThereIsNone) {
  OpPolicy policy, other;
  policy.set("mm", OpCategory::fp32);
  other.set("bmm", OpCategory::fp32);
  set_global_op_policy(other);
  {
    const Autocast region(torch::kCPU, torch::kHalf);
    EXPECT_EQ(seen().batched_product, torch::kFloat) << "the global one";
    {
      const Autocast inner(torch::kCPU, AutocastOptions{.policy = policy});
      const Autocast innermost(torch::kCPU);
      EXPECT_EQ(seen().product, torch::kFloat);
    }
    EXPECT_EQ(seen().product, torch::kHalf) << "after it was left";
  }
  set_global_op_policy(OpPolicy());
  EXPECT_EQ(seen().product, torch::kFloat) << "outside of any region";
}

TEST_P(Inherits, OneCastOfAWeight) {
  const Autocast region(torch::kCPU, torch::kHalf);
  EXPECT_EQ(seen().casts, 2) << "weight and bias";
}

TEST_P(Inherits, ThatNoCopyIsToBeKept) {
  const Autocast region(torch::kCPU,
                        AutocastOptions{.dtype = torch::kHalf, .cache_enabled = false});
  EXPECT_EQ(seen().casts, 0) << "copies are counted, and there were none";
}

TEST_P(Inherits, ThatNoCopyIsToBeKeptAlsoByARegionOfItsOwn) {
  const Autocast region(torch::kCPU,
                        AutocastOptions{.dtype = torch::kHalf, .cache_enabled = false});
  GetParam()([&] {
    const Autocast inner(torch::kCPU, torch::kHalf);
    EXPECT_EQ(look(layer_).casts, 0);
  });
}

// A region of its own in that thread, as demi::CustomBackward makes one.
TEST_P(Inherits, ARegionOfItsOwnTakesOverWhatItDoesNotName) {
  OpPolicy policy;
  policy.set("mm", OpCategory::fp32);
  const Autocast region(torch::kCPU, AutocastOptions{.dtype = torch::kHalf, .policy = policy});
  GetParam()([&] {
    const Autocast inner(torch::kCPU, torch::kBFloat16);
    const Seen there = look(layer_);
    EXPECT_EQ(there.product, torch::kFloat);
    EXPECT_EQ(there.batched_product, torch::kBFloat16);
  });
}

INSTANTIATE_TEST_SUITE_P(Threads, Inherits, testing::Values(&launch, &as_autograd_does));

}  // namespace
}  // namespace demi
