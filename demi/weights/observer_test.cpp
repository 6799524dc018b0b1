// Code that runs while a copy is cast: observers of LibTorch's ops, and other threads.
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <thread>

#include "demi/weights/testing.h"

namespace demi::weights {
namespace {

using testing::expect_right;

class Observer : public testing::Weights {
 public:
  ~Observer() override { at::removeCallback(handle_); }

  /// Runs inside the next cast of this thread. A cast under a lock would wait here for ever.
  void at_the_next_cast(std::function<void()> work) { work_ = std::move(work); }
  bool has_run() const { return !work_; }

 private:
  static std::unique_ptr<at::ObserverContext> on_op(const at::RecordFunction& op) {
    if (work_ && std::string(op.name()) == "aten::_to_copy") std::exchange(work_, nullptr)();
    return nullptr;
  }
  static inline std::function<void()> work_;
  at::CallbackHandle handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(on_op).scopes({at::RecordScope::FUNCTION}));
};

TEST_F(Observer, MayAskAndUseWeightsDuringACast) {
  auto p = owned_parameter(), q = owned_parameter();
  at_the_next_cast([&] {
    EXPECT_TRUE(is_owned(p));
    expect_right(q, "another weight");
    expect_right(p, "the same weight");
  });
  expect_right(p, "observed");
  EXPECT_TRUE(has_run());
  EXPECT_EQ(stats().copies, 4);
}

TEST_F(Observer, MayUseAnUnownedWeightDuringItsCast) {
  auto p = parameter();
  enter_region();
  at_the_next_cast([&] { expect_right(p, "the same weight"); });
  expect_right(p, "observed");
  EXPECT_TRUE(has_run());
  EXPECT_EQ(stats().copies, 2);
  leave_region();
}

TEST_F(Observer, MayDropWriteOrDisownDuringACast) {
  auto p = owned_parameter();
  at_the_next_cast([] { drop(); });
  expect_right(p, "dropped");
  const std::vector<std::function<void()>> works{[] { drop(); }, [&] { p.data().add_(1); },
                                                 [&] {
                                                   p.set_data(torch::randn({4, 4}));
                                                 },
                                                 [&] { set_capacity(0); },
                                                 [&] {
                                                   disown(p);
                                                   owned_.clear();
                                                 }};
  for (const auto& work : works) {
    p.data().add_(1);
    at_the_next_cast(work);
    low_precision(p, torch::kBFloat16);
    EXPECT_TRUE(has_run());
    expect_right(p, "after it");
    set_capacity();
  }
  EXPECT_EQ(stats().copies, 0) << "disowned";
}

// The alias of its copy may be the last that holds a leaf, and a leaf's hooks go with it. Under a
// lock what they hold would wait here for ever.
TEST_F(Observer, WhatGoesWithALeafMayAskAndUseWeights) {
  auto q = owned_parameter();
  bool has_gone = false;
  enter_region();
  {
    auto p = parameter();
    const std::shared_ptr<void> held(nullptr, [&](void*) {
      EXPECT_TRUE(is_owned(q));
      expect_right(q, "another weight");
      has_gone = true;
    });
    p.register_hook([held](const at::Tensor&) {});
    low_precision(p, torch::kBFloat16);
  }
  EXPECT_FALSE(has_gone);
  leave_region();
  EXPECT_TRUE(has_gone);
}

TEST_F(Observer, ACastThatThrowsLeavesNoCopyBehind) {
  auto p = owned_parameter();
  EXPECT_THROW(low_precision(p, torch::kQInt8), c10::Error);
  EXPECT_EQ(stats().copies, 0);
  expect_right(p, "afterwards");
}

TEST_F(Observer, ARecastStaysWithinTheCapacity) {
  auto p = owned_parameter();
  set_capacity(32);  // one copy
  for (int i = 0; i < 3; ++i) {
    low_precision(p, torch::kBFloat16);
    EXPECT_EQ(stats().copies, 1) << i;
    p.data().add_(1);
  }
  set_capacity(0);
  low_precision(p, torch::kBFloat16);
  EXPECT_EQ(stats().copies, 0) << "a stale copy is not kept where no other may take its place";
}

TEST_F(Observer, ThreadsThatWantOneCopyAtOnceKeepOne) {
  constexpr int kThreads = 4;
  for (int round = 0; round < 100; ++round) {
    auto p = parameter({32, 32});
    own(p);
    const auto wanted = p.detach().to(torch::kBFloat16);
    std::atomic<int> ready = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        ++ready;
        while (ready < kThreads) std::this_thread::yield();
        EXPECT_TRUE(low_precision(p, torch::kBFloat16).detach().equal(wanted));
      });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(stats().copies, 1);
    disown(p);
  }
}

}  // namespace
}  // namespace demi::weights
