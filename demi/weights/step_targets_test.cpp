#include "demi/weights/step_targets.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <thread>

#include "demi/core/error.h"
#include "demi/weights/testing.h"

namespace demi::weights {
namespace {

using testing::expect_right;
using testing::write_through;
using StepTargetsTest = testing::Weights;

TEST_F(StepTargetsTest, ASteadyStepCastsNothing) {
  auto p = owned_parameter();
  low_precision(p, torch::kBFloat16);
  low_precision(p, torch::kHalf);
  const auto before = stats().casts;
  StepTargets step({p});
  for (int i = 0; i < 3; ++i) {
    const auto& targets = step.begin();
    ASSERT_EQ(targets[0].copy_count, 2);
    auto* master = static_cast<float*>(targets[0].parameter);
    for (int e = 0; e < 16; ++e) {
      master[e] += 1;
      for (int c = 0; c < 2; ++c) {
        const auto& copy = targets[0].copies[c];
        if (copy.dtype == torch::kHalf)
          static_cast<at::Half*>(copy.data)[e] = master[e];
        else
          static_cast<at::BFloat16*>(copy.data)[e] = master[e];
      }
    }
    step.finish();
    expect_right(p, "after a step");
  }
  EXPECT_EQ(stats().casts, before);
}

TEST_F(StepTargetsTest, AStepFindsTheCopiesWhereTheyStandNow) {
  auto p = owned_parameter();
  StepTargets step({p});
  EXPECT_EQ(step.begin()[0].copy_count, 0);
  step.finish();
  low_precision(p, torch::kBFloat16);
  EXPECT_EQ(step.begin()[0].copy_count, 1);
  step.finish();
  disown(p);
  EXPECT_EQ(step.begin()[0].copy_count, 0) << "no copies of it are kept any more";
  step.finish();
  own(p);
  low_precision(p, torch::kBFloat16);
  low_precision(p, torch::kHalf);
  EXPECT_EQ(step.begin()[0].copy_count, 2);
  step.finish();
  EXPECT_EQ(step.begin()[0].copy_count, 2) << "and finish() made them valid";
  step.finish();
}

TEST_F(StepTargetsTest, AStepThatThrowsInTheMiddleLeavesNoWrongCopy) {
  auto p = owned_parameter();
  expect_right(p, "before");
  StepTargets step({p});
  const auto& targets = step.begin();
  static_cast<float*>(targets[0].parameter)[0] = 77;
  expect_right(p, "between");
  static_cast<float*>(targets[0].parameter)[0] = 78;
  mark_dirty(p);
  step.finish();  // the copies were made again in between: not the ones that the step wrote
  expect_right(p, "after");
}

TEST_F(StepTargetsTest, AWriteBetweenBeginAndFinishToReplacedStorageStaysSeen) {
  auto p = owned_parameter();
  expect_right(p, "before");
  StepTargets step({p});
  step.begin();
  p.set_data(torch::zeros_like(p));
  step.finish();
  expect_right(p, "after");
}

TEST_F(StepTargetsTest, AStepThatWasSkippedRevivesNoStaleCopy) {
  auto p = owned_parameter();
  expect_right(p, "before");
  p.data().add_(1);
  StepTargets step({p});
  EXPECT_EQ(step.begin()[0].copy_count, 0);
  step.finish();
  expect_right(p, "after a step that wrote nothing");
}

TEST_F(StepTargetsTest, TheStepTellsTheGraphThatWeightsChanged) {
  auto p = owned_parameter();
  const auto x = torch::ones({4, 4}).to(torch::kBFloat16).set_requires_grad(true);
  const auto loss = torch::mm(x, low_precision(p, torch::kBFloat16)).sum();
  StepTargets step({p});
  step.begin();
  step.finish();
  EXPECT_THROW(loss.backward(), c10::Error);
}

TEST_F(StepTargetsTest, AReplayRenewsTheCopiesThatItWrites) {
  auto p = owned_parameter();
  low_precision(p, torch::kBFloat16);
  StepTargets step({p});
  const StepTarget target = step.begin(/*captured=*/true)[0];
  step.finish();
  const auto version = p._version();
  const auto casts = stats().casts;
  write_through(target, 16, 7);  // as the replay does
  step.note_replay();
  EXPECT_GT(p._version(), version);
  EXPECT_TRUE(low_precision(p, torch::kBFloat16).detach().eq(7).all().item<bool>());
  EXPECT_EQ(stats().casts, casts) << "the copy that it wrote is valid";
}

TEST_F(StepTargetsTest, MemoryOfTheCopiesLastsUntilTheStepEnds) {
  const std::vector<std::pair<const char*, std::function<void(const at::Tensor&)>>> droppers{
      {"drop", [](const at::Tensor&) { drop(); }},
      {"set_mode", [](const at::Tensor&) { set_mode(Mode::keep); }},
      {"disown", [](const at::Tensor& p) { disown(p); }},
      {"another use", [](const at::Tensor& p) { low_precision(p, torch::kBFloat16); }},
      {"a use beyond the capacity",
       [](const at::Tensor& p) {
         set_capacity(0);
         low_precision(p, torch::kBFloat16);
         set_capacity();
       }},
  };
  for (const auto& [name, dropper] : droppers) {
    auto p = parameter();
    own(p);
    const auto memory = low_precision(p, torch::kBFloat16).storage().getWeakStorageImpl();
    StepTargets step({p});
    const auto target = step.begin()[0];
    ASSERT_EQ(target.copy_count, 1);
    std::thread([&, drop_it = &dropper] { (*drop_it)(p); }).join();
    EXPECT_FALSE(memory.expired()) << name << " freed what the step writes";
    write_through(target, 16, 7);
    step.finish();
    EXPECT_TRUE(memory.expired()) << name << ": the step holds it no longer";
    if (is_owned(p)) disown(p);
    expect_right(p, name);
  }
}

TEST_F(StepTargetsTest, WhatIsDroppedBesideStepsIsOnlyCastAgain) {
  auto p = owned_parameter({64, 64});
  std::atomic<bool> stop = false;
  std::thread dropper([&] {
    while (!stop) drop();
  });
  StepTargets step({p});
  for (int i = 0; i < 300; ++i) {
    const auto low = low_precision(p, torch::kBFloat16);
    ASSERT_TRUE(low.detach().equal(p.detach().to(torch::kBFloat16))) << i;
    const auto targets = step.begin();
    std::this_thread::yield();
    write_through(targets[0], p.numel(), static_cast<float>(i));
    step.finish();
  }
  stop = true;
  dropper.join();
  expect_right(p, "afterwards");
}

TEST_F(StepTargetsTest, ParametersInTheSameMemoryAreRefused) {
  auto p = owned_parameter(), q = owned_parameter();
  StepTargets step({p, q});
  expect_right(p, "before");
  step.begin();
  step.finish();
  q.set_data(p.data());
  expect_right(q, "tied");
  for (int i = 0; i < 2; ++i) EXPECT_THROW(step.begin(), UsageError);
  q.set_data(torch::ones({4, 4}));
  step.begin();
  step.finish();
  expect_right(p, "after");
  expect_right(q, "after");
}

}  // namespace
}  // namespace demi::weights
