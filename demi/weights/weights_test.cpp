#include "demi/weights/weights.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <thread>

#include "demi/weights/step_targets.h"
#include "demi/weights/testing.h"

namespace demi::weights {
namespace {

using testing::expect_right;
using testing::Weights;

TEST_F(Weights, AnUnownedWeightIsCastOnceARegionFrozenOrNot) {
  torch::nn::Linear layer(4, 4);
  for (const bool trained : {true, false}) {
    layer->weight.set_requires_grad(trained);
    for (int round = 1; round <= 2; ++round) {
      reset_stats();
      enter_region();
      for (int i = 0; i < 5; ++i) low_precision(layer->weight, torch::kBFloat16);
      for (int i = 0; i < 5; ++i) low_precision(layer->weight.t(), torch::kBFloat16);
      EXPECT_EQ(stats().casts, 1) << "trained " << trained << " round " << round;
      leave_region();
      EXPECT_EQ(stats().copies, 0);
    }
  }
}

TEST_F(Weights, NoGradAndInferenceModeUseTheSameCopy) {
  auto p = owned_parameter();
  {
    torch::NoGradGuard no_grad;
    EXPECT_FALSE(low_precision(p, torch::kBFloat16).requires_grad());
    for (int i = 0; i < 3; ++i) low_precision(p.t(), torch::kBFloat16);
  }
  {
    c10::InferenceMode guard;
    low_precision(p, torch::kBFloat16);
    for (int i = 0; i < 3; ++i) low_precision(p.t(), torch::kBFloat16);
  }
  const auto low = low_precision(p, torch::kBFloat16);
  EXPECT_TRUE(low.requires_grad());
  low.sum().backward();
  EXPECT_TRUE(p.grad().equal(torch::ones_like(p)));
  EXPECT_EQ(stats().casts, 1);
}

TEST_F(Weights, ActivationsAndBatchesHaveNoCopies) {
  torch::NoGradGuard no_grad;
  enter_region();
  for (int i = 0; i < 3; ++i) low_precision(torch::randn({4, 4}), torch::kBFloat16);
  const auto batch = torch::randn({4, 4});
  low_precision(batch, torch::kBFloat16);
  low_precision(batch.narrow(0, 0, 2), torch::kBFloat16);
  EXPECT_EQ(stats().copies, 0);
  leave_region();
}

TEST_F(Weights, AFreedWeightIsNotMistakenForTheNext) {
  enter_region();
  for (int i = 0; i < 500; ++i) {
    auto p = parameter({8, 8}, /*requires_grad=*/false);
    const auto also = p;  // NOLINT(performance-unnecessary-copy-initialization): owned twice
    expect_right(p, "fresh parameter, perhaps at the old address");
  }
  EXPECT_LT(stats().copies, 300) << "copies of dead weights are swept";
  leave_region();
}

TEST_F(Weights, AFreedTrainedWeightIsNotHeldByItsOwnAlias) {
  enter_region();
  for (int i = 0; i < 500; ++i) {
    auto p = parameter({8, 8});
    expect_right(p, "fresh parameter");
  }
  EXPECT_LT(stats().copies, 300);
  leave_region();
}

TEST_F(Weights, AFreedOwnedParameterIsNotMistakenForTheNext) {
  for (int i = 0; i < 300; ++i) {
    auto p = parameter({8, 8});
    own(p);
    expect_right(p, "fresh owned parameter, perhaps at the old address");
    disown(p);
  }
  EXPECT_EQ(stats().copies, 0);
}

TEST_F(Weights, MoreParametersThanAThreadRemembersAreCastOnceEach) {
  for (int i = 0; i < 600; ++i) owned_parameter({2, 2});
  for (int round = 0; round < 3; ++round)
    for (const auto& p : owned_) expect_right(p, "one of many");
  EXPECT_EQ(stats().casts, 1200);
  for (auto& p : owned_) p.data().add_(1);
  for (const auto& p : owned_) expect_right(p, "one of many, written to");
  EXPECT_EQ(stats().casts, 2400);
}

TEST_F(Weights, ManyLeavesOnOneStorageKeepTheirGradients) {
  const auto shared = torch::randn({2, 2});
  for (int i = 0; i < 400; ++i) {
    auto p = shared.detach().set_requires_grad(true);
    own(p);
    owned_.push_back(p);
  }
  for (int round = 1; round <= 2; ++round)
    for (const auto& p : owned_) low_precision(p, torch::kBFloat16).sum().backward();
  for (const auto& p : owned_) {
    ASSERT_TRUE(p.grad().defined());
    EXPECT_TRUE(p.grad().equal(torch::full({2, 2}, 2.)));
  }
}

TEST_F(Weights, WhatAnotherThreadDropsIsCastAgain) {
  auto p = owned_parameter();
  for (int i = 0; i < 3; ++i) {
    expect_right(p, "before");
    std::thread([] { drop(); }).join();
    EXPECT_EQ(stats().copies, 0);
  }
  std::thread([&] { disown(p); }).join();
  owned_.clear();
  expect_right(p, "no longer owned");
  EXPECT_EQ(stats().copies, 0);
}

TEST_F(Weights, OwnedInTheMiddleOfARegion) {
  auto p = parameter();
  enter_region();
  expect_right(p, "unowned");
  own(p);
  expect_right(p, "owned");
  leave_region();
  EXPECT_EQ(stats().copies, 2) << "kept across the region";
  StepTargets step({p});
  EXPECT_EQ(step.begin()[0].copy_count, 2);
  step.finish();
  disown(p);
  expect_right(p, "unowned again");
  EXPECT_EQ(stats().copies, 0);
}

TEST_F(Weights, OwnedBetweenTwoUsesInOneDtype) {
  auto p = parameter();
  enter_region();
  for (int i = 0; i < 3; ++i) low_precision(p, torch::kBFloat16);  // the thread remembers it
  own(p);
  low_precision(p, torch::kBFloat16);
  leave_region();
  EXPECT_EQ(stats().copies, 1) << "the region's copy is not what an owned parameter keeps";
  disown(p);
}

TEST_F(Weights, SetDataToAnotherPartOfTheStorage) {
  const auto flat = torch::randn({32});
  auto p = owned_parameter();
  p.set_data(flat.narrow(0, 0, 16).view({4, 4}));
  expect_right(p, "first half");
  p.set_data(flat.narrow(0, 16, 16).view({4, 4}));
  expect_right(p, "second half");
  p.set_data(flat.narrow(0, 16, 8).view({2, 4}));
  expect_right(p, "fewer rows");
  p.set_data(flat.narrow(0, 16, 8).view({4, 2}).t());
  expect_right(p, "transposed");
}

TEST_F(Weights, ANegatedViewKeepsItsSign) {
  auto p = owned_parameter();
  expect_right(p, "as it is");
  const auto negative = low_precision(at::_neg_view(p), torch::kBFloat16);
  EXPECT_TRUE(negative.detach().equal((-p.detach()).to(torch::kBFloat16)));
}

TEST_F(Weights, ATangentOfForwardModeIsNotLost) {
  auto p = owned_parameter();
  expect_right(p, "before");
  const auto level = torch::autograd::ForwardADLevel::get_next_idx();
  {
    const auto dual = at::_make_dual(p, torch::ones_like(p), static_cast<std::int64_t>(level));
    EXPECT_TRUE(low_precision(dual, torch::kBFloat16)._fw_grad(level).defined());
    EXPECT_TRUE(low_precision(dual.t(), torch::kBFloat16)._fw_grad(level).defined());
  }
  torch::autograd::ForwardADLevel::release_idx(level);
  expect_right(p, "after");
}

TEST_F(Weights, AnActivationKeepsItsHistory) {
  const auto x = torch::ones({4, 4}).set_requires_grad(true);
  enter_region();
  const auto h = x * 2;
  const auto also = h;  // NOLINT(performance-unnecessary-copy-initialization): owned twice
  low_precision(h, torch::kBFloat16).sum().backward();
  EXPECT_EQ(stats().copies, 0);
  leave_region();
  EXPECT_TRUE(x.grad().equal(torch::full({4, 4}, 2.)));
}

TEST_F(Weights, APartOfAFrozenTensorIsCastAlone) {
  const auto batches = torch::randn({8, 4});
  const auto also = batches;  // NOLINT(performance-unnecessary-copy-initialization): owned twice
  enter_region();
  low_precision(batches.narrow(0, 0, 2), torch::kBFloat16);
  EXPECT_EQ(stats().copies, 0);
  leave_region();
}

TEST_F(Weights, WritingToWhatAnOpReturnedSpoilsNoCopy) {
  auto p = owned_parameter();
  {
    torch::NoGradGuard no_grad;
    auto low = low_precision(p, torch::kBFloat16);
    low.t().zero_();
  }
  expect_right(p, "after a write to the copy itself");
}

TEST_F(Weights, ViewsOfAllKindsGiveValueAndGradient) {
  const std::vector<std::pair<const char*, std::function<at::Tensor(const at::Tensor&)>>> views{
      {"t", [](auto& p) { return p.t(); }},
      {"narrow", [](auto& p) { return p.narrow(0, 1, 2); }},
      {"select", [](auto& p) { return p.select(0, 2); }},
      {"view",
       [](auto& p) {
         return p.view({2, 8});
       }},
      {"chunk", [](auto& p) { return p.chunk(2, 1)[1]; }},
      {"expand",
       [](auto& p) {
         return p.unsqueeze(0).expand({3, 4, 4});
       }},
      {"permute",
       [](auto& p) {
         return p.permute({1, 0});
       }},
      {"slice with step", [](auto& p) { return p.slice(0, 0, 4, 2); }},
      {"view of a view", [](auto& p) { return p.t().narrow(0, 1, 2).t(); }},
      {"diagonal", [](auto& p) { return p.diagonal(); }},
  };
  for (const auto& [name, view] : views) {
    auto p = owned_parameter();
    const auto by_hand = p.detach().clone().set_requires_grad(true);
    const auto ours = low_precision(view(p), torch::kBFloat16);
    const auto theirs = view(by_hand).to(torch::kBFloat16);
    EXPECT_TRUE(ours.detach().equal(theirs.detach())) << name;
    const auto weight = torch::randn(ours.sizes()).to(torch::kBFloat16);
    (ours * weight).sum().backward();
    (theirs * weight).sum().backward();
    EXPECT_TRUE(p.grad().equal(by_hand.grad())) << name;
  }
  reset_stats();
}

TEST_F(Weights, GradientsOf16BitArriveOnAnOwnedParameterAlsoThroughAView) {
  for (const bool before_alias : {true, false}) {
    auto p = owned_parameter();
    if (!before_alias) low_precision(p, torch::kBFloat16);
    p.set_grad_dtype(torch::kBFloat16);
    (low_precision(p, torch::kBFloat16).sum() + low_precision(p.t(), torch::kBFloat16).sum())
        .backward();
    EXPECT_EQ(p.grad().scalar_type(), torch::kBFloat16);
    EXPECT_TRUE(p.grad().to(torch::kFloat).equal(torch::full({4, 4}, 2.)));
  }
}

TEST_F(Weights, CapacityAndDrop) {
  auto p = owned_parameter(), q = owned_parameter();
  set_capacity(40);  // one copy of 32 bytes
  low_precision(p, torch::kBFloat16);
  expect_right(q, "beyond the capacity");
  EXPECT_EQ(stats().copies, 1);
  EXPECT_EQ(stats().bytes, 32);
  drop();
  EXPECT_EQ(stats().copies, 0);
  EXPECT_TRUE(is_owned(p));
  expect_right(p, "after drop");
}

TEST_F(Weights, OwnershipIsCountedAndItsEndFreesTheParameter) {
  auto p = parameter();
  own(p);
  own(p);
  low_precision(p, torch::kBFloat16);
  disown(p);
  EXPECT_TRUE(is_owned(p));
  EXPECT_EQ(stats().copies, 1);
  disown(p);
  EXPECT_FALSE(is_owned(p));
  EXPECT_EQ(stats().copies, 0);
  EXPECT_EQ(p.use_count(), 1);
  disown(p);
}

TEST_F(Weights, ModesRegionAndOff) {
  auto p = owned_parameter();
  set_mode(Mode::region);
  enter_region();
  expect_right(p, "region");
  EXPECT_EQ(stats().copies, 2);
  leave_region();
  EXPECT_EQ(stats().copies, 0);
  set_mode(Mode::off);
  enter_region();
  expect_right(p, "off");
  EXPECT_EQ(stats().copies, 0);
  leave_region();
}

TEST_F(Weights, LayoutsWithoutACopyAreCastEveryTime) {
  auto sliced = torch::randn({8, 8}).slice(1, 0, 8, 2).detach().set_requires_grad(true);
  auto empty = torch::randn({0, 4}).set_requires_grad(true);
  for (auto& p : {sliced, empty}) {
    own(p);
    expect_right(p, "no copy");
    EXPECT_EQ(stats().copies, 0);
    disown(p);
  }
}

TEST_F(Weights, ChannelsLastKeepsItsStrides) {
  auto p =
      torch::randn({4, 3, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast).set_requires_grad(true);
  own(p);
  EXPECT_EQ(low_precision(p, torch::kBFloat16).strides(), p.strides());
  EXPECT_EQ(stats().copies, 1);
  disown(p);
}

TEST_F(Weights, TwoThreadsTwoDtypesOneParameter) {
  auto p = owned_parameter({16, 16});
  const auto work = [&](torch::Dtype dtype) {
    const auto wanted = p.detach().to(dtype);
    for (int i = 0; i < 500; ++i) {
      const auto low = low_precision(p, dtype);
      ASSERT_TRUE(low.detach().equal(wanted));
      if (i % 10 == 0) drop();
    }
  };
  std::thread bf16(work, torch::kBFloat16), fp16(work, torch::kHalf);
  bf16.join();
  fp16.join();
}

TEST_F(Weights, AreOwnedAndDisownedWhileAnotherThreadUsesOne) {
  const auto p = owned_parameter();
  std::thread other([] {
    for (int i = 0; i < 100; ++i) {
      const auto q = torch::ones({4, 4}).set_requires_grad(true);
      own(q);
      disown(q);
    }
  });
  for (int i = 0; i < 100; ++i) expect_right(p, "beside them");
  other.join();
}

TEST_F(Weights, HooksRetainGraphDoubleBackwardAndAutogradGrad) {
  auto p = owned_parameter();
  int fired = 0;
  p.register_hook([&](const at::Tensor& g) {
    ++fired;
    return g * 2;
  });
  const auto loss = low_precision(p, torch::kBFloat16).pow(2).sum();
  loss.backward({}, /*retain_graph=*/true);
  const auto once = p.grad().clone();
  loss.backward();
  EXPECT_EQ(fired, 2);
  EXPECT_TRUE(p.grad().equal(2 * once));

  const auto low = low_precision(p, torch::kBFloat16);
  const auto g = torch::autograd::grad({low.pow(3).sum()}, {p}, {}, {}, /*create_graph=*/true)[0];
  EXPECT_EQ(g.scalar_type(), torch::kFloat);
  const auto second = torch::autograd::grad({g.sum()}, {p})[0];
  EXPECT_EQ(second.scalar_type(), torch::kFloat);
  EXPECT_TRUE(second.isfinite().all().item<bool>());
}

TEST_F(Weights, CopiesOfAParameterAreThoseOfItsOwnerAndOfTheRegion) {
  const auto owned = owned_parameter(), loose = parameter({4, 4});
  EXPECT_TRUE(copies_of(owned).empty());
  enter_region();
  for (const auto& p : {owned, loose}) {
    const auto low = low_precision(p, torch::kBFloat16);
    ASSERT_EQ(copies_of(p).size(), 1U);
    EXPECT_EQ(copies_of(p)[0].data_ptr(), low.data_ptr());
    low_precision(p, torch::kHalf);
    EXPECT_EQ(copies_of(p).size(), 2U);
  }
  leave_region();
  EXPECT_EQ(copies_of(owned).size(), 2U);
  EXPECT_TRUE(copies_of(loose).empty());
}

}  // namespace
}  // namespace demi::weights
