// A captured step continues to write where it wrote when it was captured, and the host learns of
// none of its replays.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "demi/weights/testing.h"

namespace demi::weights {
namespace {

using testing::expect_right;

/// Pointers that a graph has taken down.
struct Replay {
  StepTarget target;
  std::int64_t elements;

  void operator()(float value) const { testing::write_through(target, elements, value); }
};

class CapturedStepTest : public testing::Weights {
 protected:
  static Replay capture(StepTargets& step, const at::Tensor& p) {
    const Replay replay{step.begin(/*captured=*/true)[0], p.numel()};
    step.finish();
    return replay;
  }
  float next() { return ++value_; }

 private:
  float value_ = 100;
};

const std::vector<std::pair<const char*, std::function<void(at::Tensor&)>>>& between_replays() {
  static const std::vector<std::pair<const char*, std::function<void(at::Tensor&)>>> all{
      {"nothing", [](at::Tensor&) {}},
      {"a write", [](at::Tensor& p) { p.data().add_(1); }},
      {"a write and a use",
       [](at::Tensor& p) {
         p.data().add_(1);
         expect_right(p, "written between replays");
       }},
      {"weights swapped for an average and back",
       [](at::Tensor& p) {
         const auto kept = p.detach().clone();
         p.data().copy_(torch::ones_like(kept));
         expect_right(p, "averaged");
         p.data().copy_(kept);
       }},
      {"drop", [](at::Tensor&) { drop(); }},
      {"drop and a use",
       [](at::Tensor& p) {
         drop();
         expect_right(p, "dropped");
       }},
      {"no capacity",
       [](at::Tensor& p) {
         set_capacity(0);
         p.data().add_(1);
         expect_right(p, "beyond the capacity");
         set_capacity();
       }},
      {"another mode",
       [](at::Tensor& p) {
         set_mode(Mode::off);
         expect_right(p, "off");
         set_mode(Mode::keep);
       }},
      {"an eager step",
       [](at::Tensor& p) {
         StepTargets eager({p});
         Replay{eager.begin()[0], p.numel()}(55);
         eager.finish();
       }},
  };
  return all;
}

TEST_F(CapturedStepTest, CopiesAreRightAfterEveryReplayWhateverHappensBetween) {
  auto p = owned_parameter();
  low_precision(p, torch::kBFloat16);
  StepTargets step({p});
  const Replay replay = capture(step, p);
  ASSERT_EQ(replay.target.copy_count, 1);
  expect_right(p, "captured: nothing has been written");
  for (const auto& [name, work] : between_replays()) {
    replay(next());
    expect_right(p, name);
    work(p);
    expect_right(p, name);
    replay(next());
    expect_right(p, name);
  }
}

TEST_F(CapturedStepTest, AStaleCopyIsWrittenAndStaysStale) {
  auto p = owned_parameter();
  low_precision(p, torch::kHalf);
  p.data().add_(1);
  StepTargets step({p});
  const Replay replay = capture(step, p);
  ASSERT_EQ(replay.target.copy_count, 1);
  expect_right(p, "captured: a skipped replay would leave it as it was");
  for (int i = 0; i < 2; ++i) {
    replay(next());
    expect_right(p, "replayed");
  }
}

TEST_F(CapturedStepTest, TwoGraphsRefreshTheSameCopy) {
  auto p = owned_parameter();
  low_precision(p, torch::kBFloat16);
  StepTargets step({p}), other({p});
  const Replay first = capture(step, p);
  drop();
  const Replay second = capture(other, p);
  ASSERT_EQ(second.target.copy_count, 1);
  EXPECT_EQ(second.target.copies[0].data, first.target.copies[0].data);
  for (const auto* replay : {&first, &second, &first}) {
    (*replay)(next());
    expect_right(p, "one of two graphs");
  }
}

TEST_F(CapturedStepTest, ACopyThatOnlyOneOfTwoGraphsRefreshesIsNotKept) {
  auto p = owned_parameter();
  StepTargets step({p}), other({p});
  const Replay without = capture(step, p);
  ASSERT_EQ(without.target.copy_count, 0);
  expect_right(p, "never kept");
  EXPECT_EQ(stats().copies, 0);
  const Replay second = capture(other, p);
  for (const auto* replay : {&without, &second, &without}) {
    (*replay)(next());
    expect_right(p, "one of two graphs");
  }
}

TEST_F(CapturedStepTest, NoCopyForARegionEither) {
  auto p = owned_parameter();
  StepTargets step({p});
  const Replay replay = capture(step, p);
  set_mode(Mode::region);
  enter_region();
  for (int i = 0; i < 2; ++i) {
    expect_right(p, "in a region");
    replay(next());
  }
  expect_right(p, "in a region");
  leave_region();
}

TEST_F(CapturedStepTest, OtherDataAreNotTheGraphs) {
  auto p = owned_parameter();
  StepTargets step({p});
  capture(step, p);
  const auto old = p.data();
  p.set_data(torch::randn({4, 4}));
  expect_right(p, "other data");
  EXPECT_EQ(stats().copies, 2);
  p.set_data(old.view({2, 8}));
  expect_right(p, "the graph's data in another shape");
  EXPECT_EQ(stats().copies, 0);
}

TEST_F(CapturedStepTest, MemoryOfAnotherShapeIsNotRefilled) {
  auto p = owned_parameter();
  low_precision(p, torch::kBFloat16);
  StepTargets step({p});
  const Replay replay = capture(step, p);
  ASSERT_EQ(replay.target.copy_count, 1);
  const auto data = p.data();
  for (const auto& reshaped : {data.view({2, 8}), data.view({16}), data.t()}) {
    p.set_data(reshaped);
    expect_right(p, "the graph's data in another shape");
    replay(next());
    expect_right(p, "replayed");
  }
}

TEST_F(CapturedStepTest, TheEndOfTheStepFreesItsMemory) {
  auto p = owned_parameter();
  const auto memory = low_precision(p, torch::kBFloat16).storage().getWeakStorageImpl();
  {
    StepTargets step({p});
    capture(step, p);
    drop();
    EXPECT_FALSE(memory.expired()) << "replays write there";
  }
  EXPECT_TRUE(memory.expired());
  expect_right(p, "no graph any more");
  EXPECT_EQ(stats().copies, 2) << "copies are kept again";
}

}  // namespace
}  // namespace demi::weights
