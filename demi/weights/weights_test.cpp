#include "demi/weights/weights.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <sstream>
#include <thread>

#include "demi/weights/mutation_hook.h"
#include "demi/weights/step_targets.h"

namespace demi::weights {
namespace {

using Write = std::function<void(at::Tensor&)>;

struct NamedWrite {
  const char* name;
  Write write;
};

template <class Optimizer, class Options>
Write step_of(Options options) {
  return [options](at::Tensor& p) {
    p.mutable_grad() = torch::ones_like(p);
    Optimizer optimizer({p}, options);
    optimizer.step([&] { return torch::ones({}); });
  };
}

void copy_into(at::Tensor& p, float value) {
  torch::NoGradGuard no_grad;
  p.copy_(torch::full_like(p, value));
}

// The table of writes: every eager way that LibTorch has to change a parameter.
std::vector<NamedWrite> writes() {
  using namespace torch::optim;
  std::vector<NamedWrite> table{
      {"SGD", step_of<SGD>(SGDOptions(0.5))},
      {"SGD with momentum", step_of<SGD>(SGDOptions(0.5).momentum(0.9))},
      {"Adam", step_of<Adam>(AdamOptions(0.5))},
      {"AdamW", step_of<AdamW>(AdamWOptions(0.5))},
      {"LBFGS", step_of<LBFGS>(LBFGSOptions(0.5))},
      {"RMSprop", step_of<RMSprop>(RMSpropOptions(0.5))},
      {"Adagrad", step_of<Adagrad>(AdagradOptions(0.5))},
      {"_fused_sgd_",
       [](at::Tensor& p) {
         torch::NoGradGuard no_grad;
         at::_fused_sgd_({p}, {torch::ones_like(p)}, {}, 0., 0., 0.5, 0., false, false, true);
       }},
      {"_fused_adamw_",
       [](at::Tensor& p) {
         torch::NoGradGuard no_grad;
         at::_fused_adamw_({p}, {torch::ones_like(p)}, {torch::zeros_like(p)},
                           {torch::zeros_like(p)}, {}, {torch::ones({})}, 0.5, 0.9, 0.99, 0., 1e-8,
                           false, false);
       }},
      {"_foreach_add_",
       [](at::Tensor& p) {
         torch::NoGradGuard no_grad;
         at::_foreach_add_({p}, 1);
       }},
      {"mul_ under no_grad",
       [](at::Tensor& p) {
         torch::NoGradGuard no_grad;
         p.mul_(3);
       }},
      {"copy_", [](at::Tensor& p) { copy_into(p, 7); }},
      {"data().copy_", [](at::Tensor& p) { p.data().copy_(torch::full_like(p, 7)); }},
      {"data().add_", [](at::Tensor& p) { p.data().add_(1); }},
      {"variable_data().add_", [](at::Tensor& p) { p.variable_data().add_(1); }},
      {"detach().add_", [](at::Tensor& p) { p.detach().add_(1); }},
      {"a view's fill_", [](at::Tensor& p) { p.data().view(-1).narrow(0, 0, 2).fill_(9); }},
      {"index_put_", [](at::Tensor& p) { p.data().index_put_({0}, torch::full({p.size(1)}, 5.)); }},
      {"out= variant",
       [](at::Tensor& p) {
         auto data = p.data();
         at::add_out(data, torch::ones_like(data), torch::ones_like(data));
       }},
      {"data_ptr taken now", [](at::Tensor& p) { p.data_ptr<float>()[0] = 42; }},
      {"mutable_data_ptr of data()",
       [](at::Tensor& p) { p.data().mutable_data_ptr<float>()[1] = 42; }},
      {"accessor",
       [](at::Tensor& p) {
         auto data = p.data();
         data.accessor<float, 2>()[0][0] = 42;
       }},
      {"set_data", [](at::Tensor& p) { p.set_data(torch::full_like(p, 5)); }},
      {"set_data, transposed on the same storage", [](at::Tensor& p) { p.set_data(p.data().t()); }},
      {"set_data to double and back",
       [](at::Tensor& p) {
         p.set_data(p.data().to(torch::kDouble).add(1));
         p.set_data(p.data().to(torch::kFloat));
       }},
      {"vector_to_parameters",
       [](at::Tensor& p) {
         std::vector<at::Tensor> one{p};
         torch::nn::utils::vector_to_parameters(
             torch::arange(static_cast<double>(p.numel())).to(torch::kFloat), one);
       }},
      {"torch::load",
       [](at::Tensor& p) {
         std::stringstream file;
         torch::save(torch::full_like(p.detach(), 3), file);
         at::Tensor loaded;
         torch::load(loaded, file);
         p.data().copy_(loaded);
       }},
      {"module load",
       [](at::Tensor& p) {
         torch::serialize::OutputArchive out;
         out.write("p", torch::full_like(p.detach(), 3));
         std::stringstream file;
         out.save_to(file);
         torch::serialize::InputArchive in;
         in.load_from(file);
         in.read("p", p);
       }},
      {"init::normal_", [](at::Tensor& p) { torch::nn::init::normal_(p); }},
      {"init::xavier_uniform_", [](at::Tensor& p) { torch::nn::init::xavier_uniform_(p); }},
      {"resize_ of data",
       [](at::Tensor& p) {
         p.data().resize_({64, 64}).fill_(2);
       }},
      {"swap of storage data", [](at::Tensor& p) { p.set_data(torch::zeros_like(p)); }},
      {"clip by clamp_", [](at::Tensor& p) { p.data().clamp_(-0.01, 0.01); }},
      {"zero_",
       [](at::Tensor& p) {
         torch::NoGradGuard no_grad;
         p.zero_();
       }},
      {"in-place in inference mode",
       [](at::Tensor& p) {
         c10::InferenceMode guard;
         p.data().add_(1);
       }},
  };
  return table;
}

class Weights : public testing::Test {
 protected:
  void SetUp() override {
    torch::manual_seed(1);
    before_ = mode();
    set_mode(Mode::keep);
    reset_stats();
  }
  void TearDown() override {
    for (const auto& p : owned_) disown(p);
    set_capacity();
    set_mode(before_);
    EXPECT_EQ(stats().copies, 0);
    EXPECT_EQ(stats().bytes, 0);
  }
  at::Tensor parameter(at::IntArrayRef sizes = {4, 4}, bool requires_grad = true) {
    return torch::randn(sizes).set_requires_grad(requires_grad);
  }
  at::Tensor owned_parameter(at::IntArrayRef sizes = {4, 4}, bool requires_grad = true) {
    auto p = parameter(sizes, requires_grad);
    own(p);
    owned_.push_back(p);
    return p;
  }
  std::vector<at::Tensor> owned_;
  Mode before_;
};

// What an op must see: the parameter's value now, rounded.
void expect_right(const at::Tensor& p, const char* what) {
  for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
    const auto low = low_precision(p, dtype);
    EXPECT_EQ(low.scalar_type(), dtype) << what;
    EXPECT_TRUE(low.detach().equal(p.detach().to(dtype))) << what << " left a stale copy";
    EXPECT_TRUE(low_precision(p.t(), dtype).detach().equal(p.detach().t().to(dtype)))
        << what << " (view)";
  }
}

TEST_F(Weights, HookWorksHere) { EXPECT_TRUE(hook_works()); }

TEST_F(Weights, EveryWriteIsSeenAtTheNextUseOfAnOwnedParameter) {
  for (const auto& [name, write] : writes()) {
    auto p = owned_parameter();
    expect_right(p, name);
    const auto before = stats().casts;
    const auto old = p.detach().clone();
    write(p);
    EXPECT_FALSE(p.sizes() == old.sizes() && p.detach().equal(old)) << name << " wrote nothing";
    expect_right(p, name);
    EXPECT_EQ(stats().casts - before, 2) << name << ": one cast for each dtype";
    expect_right(p, name);
    EXPECT_EQ(stats().casts - before, 2) << name << ": and no other";
  }
}

TEST_F(Weights, EveryWriteInsideARegionIsSeen) {
  for (const auto& [name, write] : writes()) {
    auto p = parameter();
    enter_region();
    expect_right(p, name);
    write(p);
    expect_right(p, name);
    leave_region();
    EXPECT_EQ(stats().copies, 0);
  }
}

TEST_F(Weights, AWriteThroughOneTensorOfAStorageIsSeenByAll) {
  const auto flat = torch::randn({32});
  auto p = owned_parameter(), q = owned_parameter();
  p.set_data(flat.narrow(0, 0, 16).view({4, 4}));
  q.set_data(flat.narrow(0, 16, 16).view({4, 4}));
  expect_right(p, "p");
  expect_right(q, "q");
  flat.mul_(2);
  expect_right(p, "p after");  // hooks the storage again, which must not make q's copy look valid
  expect_right(q, "q after");
}

TEST_F(Weights, ReadingKeepsTheCopy) {
  auto p = owned_parameter();
  expect_right(p, "before");
  const auto before = stats().casts;
  torch::mm(p, p).sum().backward();
  p.detach().sum().item<float>();
  p.detach().clone();
  torch::linear(torch::ones({2, 4}), p);
  expect_right(p, "after");
  EXPECT_EQ(stats().casts, before);
}

TEST_F(Weights, ARawPointerHeldFromBeforeNeedsMarkDirty) {
  auto p = owned_parameter();
  float* raw = p.data_ptr<float>();
  expect_right(p, "before");
  raw[0] = 1234;
  mark_dirty(p);
  expect_right(p, "after mark_dirty");
}

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
    const auto also = p;
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
  const auto also = h;
  low_precision(h, torch::kBFloat16).sum().backward();
  EXPECT_EQ(stats().copies, 0);
  leave_region();
  EXPECT_TRUE(x.grad().equal(torch::full({4, 4}, 2.)));
}

TEST_F(Weights, APartOfAFrozenTensorIsCastAlone) {
  const auto batches = torch::randn({8, 4});
  const auto also = batches;
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

TEST_F(Weights, ASteadyStepCastsNothing) {
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

TEST_F(Weights, AStepFindsTheCopiesWhereTheyStandNow) {
  auto p = owned_parameter();
  StepTargets step({p});
  EXPECT_EQ(step.begin()[0].copy_count, 0);
  step.finish();
  low_precision(p, torch::kBFloat16);
  EXPECT_EQ(step.begin()[0].copy_count, 1);
  step.finish();
  disown(p);
  EXPECT_EQ(step.begin()[0].copy_count, 0) << "nobody keeps copies of it any more";
  step.finish();
  own(p);
  low_precision(p, torch::kBFloat16);
  low_precision(p, torch::kHalf);
  EXPECT_EQ(step.begin()[0].copy_count, 2);
  step.finish();
  EXPECT_EQ(step.begin()[0].copy_count, 2) << "and finish() made them valid";
  step.finish();
}

TEST_F(Weights, AStepThatThrowsInTheMiddleLeavesNoWrongCopy) {
  auto p = owned_parameter();
  expect_right(p, "before");
  StepTargets step({p});
  const auto& targets = step.begin();
  static_cast<float*>(targets[0].parameter)[0] = 77;
  expect_right(p, "between");
  static_cast<float*>(targets[0].parameter)[0] = 78;
  mark_dirty(p);
  step.finish();  // the copies were made anew in between: not the ones that the step wrote
  expect_right(p, "after");
}

TEST_F(Weights, AWriteBetweenBeginAndFinishToReplacedStorageStaysSeen) {
  auto p = owned_parameter();
  expect_right(p, "before");
  StepTargets step({p});
  step.begin();
  p.set_data(torch::zeros_like(p));
  step.finish();
  expect_right(p, "after");
}

TEST_F(Weights, AStepThatWasSkippedRevivesNoStaleCopy) {
  auto p = owned_parameter();
  expect_right(p, "before");
  p.data().add_(1);
  StepTargets step({p});
  EXPECT_EQ(step.begin()[0].copy_count, 0);
  step.finish();
  expect_right(p, "after a step that wrote nothing");
}

TEST_F(Weights, TheStepTellsTheGraphThatWeightsChanged) {
  auto p = owned_parameter();
  const auto x = torch::ones({4, 4}).to(torch::kBFloat16).set_requires_grad(true);
  const auto loss = torch::mm(x, low_precision(p, torch::kBFloat16)).sum();
  StepTargets step({p});
  step.begin();
  step.finish();
  EXPECT_THROW(loss.backward(), c10::Error);
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

}  // namespace
}  // namespace demi::weights
