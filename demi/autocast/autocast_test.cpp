#include "demi/autocast/autocast.h"

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <thread>

#include "demi/autocast/apply.h"
#include "demi/autocast/op_table.h"
#include "demi/autocast/parts.h"
#include "demi/autocast/thread_state.h"
#include "demi/core/error.h"
#include "demi/weights/recorded_warnings_testing.h"
#include "demi/weights/weights.h"

namespace demi {
namespace {

using testing::HasSubstr;
using weights::testing::RecordedWarnings;

torch::Dtype dtype_of_mm() {
  return torch::mm(torch::ones({2, 2}), torch::ones({2, 2})).scalar_type();
}

template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(Autocast, MatrixProductsRunInTheRegionsDtype) {
  Autocast region(torch::kCPU);
  EXPECT_EQ(dtype_of_mm(), torch::kBFloat16);
}

TEST(Autocast, NestingRestoresWhatWasOutsideAlsoByAnException) {
  {
    Autocast outer(torch::kCPU, torch::kBFloat16);
    {
      Autocast off(torch::kCPU, AutocastOptions{.enabled = false});
      EXPECT_EQ(dtype_of_mm(), torch::kFloat);
      Autocast half(torch::kCPU, torch::kHalf);
      EXPECT_EQ(dtype_of_mm(), torch::kHalf);
    }
    try {
      Autocast half(torch::kCPU, torch::kHalf);
      throw std::runtime_error("x");
    } catch (const std::runtime_error&) {
    }
    EXPECT_EQ(dtype_of_mm(), torch::kBFloat16);
    Autocast other_device(torch::kCUDA, torch::kHalf);
    EXPECT_EQ(dtype_of_mm(), torch::kBFloat16);
  }
  EXPECT_EQ(dtype_of_mm(), torch::kFloat);
  EXPECT_EQ(at::autocast::get_autocast_dtype(torch::kCPU), torch::kBFloat16);
  EXPECT_EQ(at::autocast::get_autocast_dtype(torch::kCUDA), torch::kHalf);
}

TEST(Autocast, MovesAndLeavesOnce) {
  auto region = std::make_unique<Autocast>(torch::kCPU);
  Autocast moved(std::move(*region));
  region.reset();
  EXPECT_EQ(dtype_of_mm(), torch::kBFloat16);
  moved.leave();
  EXPECT_EQ(dtype_of_mm(), torch::kFloat);
  moved.leave();
}

TEST(Autocast, LeftInTheWrongOrderSaysSoAndRestores) {
  auto outer = std::make_unique<Autocast>(torch::kCPU, torch::kHalf);
  auto inner = std::make_unique<Autocast>(torch::kCPU, torch::kBFloat16);
  EXPECT_THAT(message_of([&] { outer->leave(); }), HasSubstr("entered later is still open"));
  EXPECT_EQ(dtype_of_mm(), torch::kBFloat16);
  RecordedWarnings warnings;
  outer.reset();
  EXPECT_EQ(warnings.holding("entered later is still open"), 1);
  EXPECT_EQ(dtype_of_mm(), torch::kBFloat16) << "the inner region is still in force";
  inner.reset();
  EXPECT_EQ(dtype_of_mm(), torch::kFloat);
  EXPECT_EQ(at::autocast::get_autocast_dtype(torch::kCPU), torch::kBFloat16);
}

TEST(Autocast, LeftInAnotherThreadSaysSoAndHarmsNeither) {
  auto region = std::make_unique<Autocast>(torch::kCPU, torch::kHalf);
  std::string said;
  int64_t warned = 0;
  std::thread([&] {
    said = message_of([&] { region->leave(); });
    RecordedWarnings warnings;
    region.reset();
    warned = warnings.holding("another thread");
    EXPECT_EQ(dtype_of_mm(), torch::kFloat);
    EXPECT_FALSE(at::autocast::is_autocast_enabled(torch::kCPU));
  }).join();
  EXPECT_THAT(said, HasSubstr("another thread"));
  EXPECT_EQ(warned, 1);
  EXPECT_EQ(dtype_of_mm(), torch::kHalf) << "this thread is still where it was";
  {
    Autocast next(torch::kCPU);
    EXPECT_EQ(dtype_of_mm(), torch::kBFloat16) << "what was left is not outside of the next one";
  }
  EXPECT_EQ(dtype_of_mm(), torch::kFloat);
}

TEST(Autocast, LeavingGoesOnWhereAnotherThreadLeftTheInnerRegion) {
  Autocast outer(torch::kCPU, torch::kHalf);
  auto inner = std::make_unique<Autocast>(torch::kCPU, torch::kBFloat16);
  std::thread([&] {
    const RecordedWarnings quiet;
    inner.reset();
  }).join();
  outer.leave();
  EXPECT_EQ(dtype_of_mm(), torch::kFloat);
}

TEST(Autocast, AssigningToARegionEndsWhatItHeld) {
  {
    const RecordedWarnings quiet;
    Autocast region(torch::kCPU, torch::kHalf);
    Autocast& same = region;
    region = std::move(same);
    EXPECT_EQ(dtype_of_mm(), torch::kHalf);
    region = Autocast(torch::kCPU, torch::kBFloat16);
    EXPECT_EQ(dtype_of_mm(), torch::kBFloat16);
  }
  EXPECT_EQ(dtype_of_mm(), torch::kFloat);
  EXPECT_EQ(at::autocast::get_autocast_dtype(torch::kCPU), torch::kBFloat16);
}

// As torch.autocast: what is not given is what is set now.
TEST(Autocast, ANestedRegionTakesOverDtypeAndPolicyThatItDoesNotName) {
  OpPolicy policy;
  policy.set("softmax", OpCategory::fp32);
  Autocast outer(torch::kCPU, AutocastOptions{.dtype = torch::kHalf, .policy = policy});
  Autocast off(torch::kCPU, AutocastOptions{.enabled = false});
  Autocast inner(torch::kCPU);
  EXPECT_EQ(dtype_of_mm(), torch::kHalf);
  EXPECT_EQ(torch::softmax(torch::ones({2}, torch::kHalf), 0).scalar_type(), torch::kFloat);
}

// LibTorch clears its cache where the outermost region ends. Its own kernels show it.
TEST(Autocast, TheOutermostRegionsEndClearsLibTorchsCache) {
  const auto w = torch::ones({2, 2}).set_requires_grad(true);
  const auto sum = [&] { return torch::mm(torch::ones({2, 2}), w).sum().item<float>(); };
  { Autocast first(torch::kCPU); }
  remove_kernels(torch::kCPU);
  {
    Autocast outer(torch::kCPU);
    {
      Autocast inner(torch::kCPU);
      EXPECT_EQ(sum(), 8);
    }
    w.data().mul_(2);
    EXPECT_EQ(sum(), 8) << "LibTorch's cache does not see the write";
  }
  Autocast next(torch::kCPU);
  EXPECT_EQ(sum(), 16);
  install_kernels(torch::kCPU);
}

TEST(Autocast, RemovedKernelsAreLibTorchsOwn) {
  Autocast region(torch::kCPU);
  const auto bf16 = torch::ones({2}, torch::kBFloat16), fp16 = torch::ones({2}, torch::kHalf);
  remove_kernels(torch::kCPU);
  EXPECT_THROW(torch::cat({bf16, fp16}), c10::Error);
  install_kernels(torch::kCPU);
  EXPECT_EQ(torch::cat({bf16, fp16}).scalar_type(), torch::kFloat);
}

TEST(Autocast, BadDevicesAndDtypesAreNamed) {
  EXPECT_THAT(message_of([] { Autocast region(torch::kMeta); }), HasSubstr("cpu, cuda"));
  EXPECT_THAT(message_of([] { Autocast region(torch::kCPU, torch::kInt); }),
              HasSubstr("fp16, bf16"));
  EXPECT_FALSE(at::autocast::is_autocast_enabled(torch::kCPU));
}

TEST(Autocast, KerasPolicies) {
  set_global_policy("mixed_bfloat16");
  {
    Autocast region(torch::kCPU, global_policy());
    const auto logits = torch::mm(torch::ones({2, 2}), torch::ones({2, 2}));
    EXPECT_EQ(logits.scalar_type(), torch::kBFloat16);
    EXPECT_EQ(torch::softmax(logits, 1).scalar_type(), torch::kFloat)
        << "softmax output stays FP32";
    EXPECT_EQ(torch::log_softmax(logits, 1).scalar_type(), torch::kFloat);
  }
  {
    Autocast region;
    EXPECT_TRUE(at::autocast::is_autocast_enabled(torch::hasCUDA() ? torch::kCUDA : torch::kCPU));
  }
  set_global_policy(Policy());
  Autocast region(torch::kCPU, global_policy());
  EXPECT_EQ(dtype_of_mm(), torch::kFloat);
}

TEST(Autocast, RawSettersOfLibTorchKeepWorkingBesideIt) {
  { Autocast region(torch::kCPU); }
  at::autocast::set_autocast_enabled(torch::kCPU, true);
  at::autocast::set_autocast_dtype(torch::kCPU, torch::kHalf);
  at::autocast::increment_nesting();
  EXPECT_EQ(dtype_of_mm(), torch::kHalf);
  {
    Autocast region(torch::kCPU, torch::kBFloat16);
    EXPECT_EQ(dtype_of_mm(), torch::kBFloat16);
  }
  EXPECT_EQ(dtype_of_mm(), torch::kHalf);
  torch::nn::Linear layer(2, 2);
  layer->forward(torch::ones({2, 2})).sum().backward();
  EXPECT_EQ(layer->weight.grad().scalar_type(), torch::kFloat);
  at::autocast::decrement_nesting();
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(torch::kCPU, false);
  at::autocast::set_autocast_dtype(torch::kCPU, torch::kBFloat16);
  EXPECT_EQ(weights::stats().copies, 0);
}

TEST(Autocast, BackwardRunsInTheForwardOpsDtypeInsideAndOutside) {
  const auto gradient = [](bool inside) {
    const auto w = torch::full({4, 4}, 1.0f / 3).set_requires_grad(true);
    const auto x = torch::full({4, 4}, 1.0f / 7);
    auto region = std::make_unique<Autocast>(torch::kCPU);
    const auto loss = torch::mm(x, w).pow(2).sum();
    if (!inside) region.reset();
    loss.backward();
    return w.grad().clone();
  };
  EXPECT_TRUE(gradient(true).equal(gradient(false)));
  const auto w = torch::full({4, 4}, 1.0f / 3).set_requires_grad(true);
  const auto x = torch::full({4, 4}, 1.0f / 7);
  torch::mm(x.to(torch::kBFloat16), w.to(torch::kBFloat16)).pow(2).sum().backward();
  EXPECT_TRUE(gradient(false).equal(w.grad()));
}

TEST(Autocast, TwoDtypesNestedOnOneWeight) {
  torch::nn::Linear layer(8, 8);
  const auto x = torch::randn({2, 8});
  Autocast half(torch::kCPU, torch::kHalf);
  EXPECT_EQ(layer->forward(x).scalar_type(), torch::kHalf);
  {
    Autocast bf16(torch::kCPU, torch::kBFloat16);
    EXPECT_EQ(layer->forward(x).scalar_type(), torch::kBFloat16);
  }
  EXPECT_EQ(layer->forward(x).scalar_type(), torch::kHalf);
}

TEST(Autocast, AWeightIsCastOnceARegionThroughLinearAndConvolution) {
  torch::nn::Linear layer(8, 8);
  torch::nn::Conv2d convolution(1, 1, 2);
  weights::reset_stats();
  Autocast region(torch::kCPU);
  for (int i = 0; i < 3; ++i) {
    layer->forward(torch::ones({2, 8})).sum().backward();
    convolution->forward(torch::ones({1, 1, 3, 3}));
  }
  EXPECT_EQ(weights::stats().casts, 4);
}

TEST(Autocast, CacheDisabledKeepsNothing) {
  torch::nn::Linear layer(8, 8);
  Autocast region(torch::kCPU, AutocastOptions{.cache_enabled = false});
  layer->forward(torch::ones({2, 8}));
  EXPECT_EQ(weights::stats().copies, 0);
  region.leave();
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
}

// As torch.autocast: is_autocast_cache_enabled() is taken over where cache_enabled is not given.
TEST(Autocast, ANestedRegionLeavesTheCacheOffUnlessToldOtherwise) {
  torch::nn::Linear layer(8, 8);
  const auto casts_kept = [&](const AutocastOptions& options) {
    weights::reset_stats();
    const Autocast inner(torch::kCPU, options);
    layer->forward(torch::ones({2, 8}));
    return weights::stats().casts;
  };
  const Autocast outer(torch::kCPU, AutocastOptions{.cache_enabled = false});
  EXPECT_EQ(casts_kept({}), 0);
  EXPECT_EQ(casts_kept({.dtype = torch::kHalf}), 0);
  EXPECT_EQ(casts_kept({.cache_enabled = true}), 2);
  EXPECT_FALSE(at::autocast::is_autocast_cache_enabled()) << "what was set outside is back";
  {
    const Autocast off(torch::kCPU, AutocastOptions{.enabled = false});
    EXPECT_FALSE(at::autocast::is_autocast_cache_enabled());
    EXPECT_EQ(casts_kept({}), 0);
  }
  EXPECT_EQ(casts_kept({}), 0);
}

TEST(Autocast, ARegionWithoutADtypeRefusesOneThatRawSettersLeft) {
  at::autocast::set_autocast_dtype(torch::kCPU, torch::kDouble);
  EXPECT_THAT(message_of([] { Autocast region(torch::kCPU); }),
              testing::AllOf(HasSubstr("set_autocast_dtype"), HasSubstr("Double"),
                             HasSubstr("fp16, bf16"), HasSubstr("name the region's dtype")));
  EXPECT_FALSE(at::autocast::is_autocast_enabled(torch::kCPU));
  {
    const Autocast named(torch::kCPU, torch::kHalf);
    EXPECT_EQ(dtype_of_mm(), torch::kHalf);
    const Autocast off(torch::kCPU, AutocastOptions{.enabled = false});
  }
  { const Autocast off(torch::kCPU, AutocastOptions{.enabled = false}); }
  EXPECT_EQ(at::autocast::get_autocast_dtype(torch::kCPU), torch::kDouble) << "the user's own";
  at::autocast::set_autocast_dtype(torch::kCPU, torch::kBFloat16);
}

TEST(Autocast, AnActivationThatABoxedKernelCastsIsNoWeight) {
  Autocast region(torch::kCPU);
  const auto x = torch::ones({2, 2}), a = torch::ones({3, 2, 2}), b = torch::ones({3, 2, 2});
  torch::addbmm(x, a, b);
  EXPECT_EQ(weights::stats().copies, 0);
}

TEST(Autocast, WorkersTakeOverTheState) {
  OpPolicy policy;
  policy.set("softmax", OpCategory::fp32);
  Autocast region(torch::kCPU, AutocastOptions{.dtype = torch::kHalf, .policy = policy});
  const ThreadState state;
  std::thread([&] {
    EXPECT_EQ(dtype_of_mm(), torch::kFloat);
    {
      ThreadState::Guard guard(state);
      const auto product = torch::mm(torch::ones({2, 2}), torch::ones({2, 2}));
      EXPECT_EQ(product.scalar_type(), torch::kHalf);
      EXPECT_EQ(torch::softmax(product, 1).scalar_type(), torch::kFloat);
    }
    EXPECT_EQ(dtype_of_mm(), torch::kFloat);
    EXPECT_EQ(at::autocast::get_autocast_dtype(torch::kCPU), torch::kBFloat16);
    Autocast own(torch::kCPU);
    EXPECT_EQ(torch::softmax(torch::ones({2}, torch::kHalf), 0).scalar_type(), torch::kHalf)
        << "the policy is gone with the guard";
  }).join();
}

TEST(Autocast, AWorkersGuardIsARegionForWeights) {
  torch::nn::Linear layer(8, 8);
  const auto casts_of_a_worker = [&](bool cache) {
    Autocast region(torch::kCPU, AutocastOptions{.cache_enabled = cache});
    const ThreadState state;
    std::int64_t casts = 0;
    std::thread([&] {
      ThreadState::Guard guard(state);
      weights::reset_stats();
      for (int i = 0; i < 3; ++i) layer->forward(torch::ones({2, 8}));
      casts = weights::stats().casts;
    }).join();
    return casts;
  };
  EXPECT_EQ(casts_of_a_worker(true), 2) << "weight and bias";
  EXPECT_EQ(casts_of_a_worker(false), 0) << "no copies";
  std::thread([&] {
    { const ThreadState::Guard guard{ThreadState()}; }
    Autocast region(torch::kCPU);
    layer->forward(torch::ones({2, 8}));
    region.leave();
    EXPECT_EQ(weights::stats().copies, 0) << "the guard's region has ended";
  }).join();
}

TEST(Autocast, ADtypeErrorNamesOpDtypesRegionAndCure) {
  Autocast region(torch::kCPU, torch::kBFloat16);
  const auto a = torch::ones({3}), b = torch::ones({3}, torch::kBFloat16);
  const std::string message = message_of([&] { torch::dot(a, b); });
  EXPECT_THAT(message, HasSubstr("dot(fp32, bf16)"));
  EXPECT_THAT(message, HasSubstr("region: cpu bf16"));
  EXPECT_THAT(message, HasSubstr("policy.set(\"dot\", demi::OpCategory::promote)"));
  const std::string fp64 = message_of([&] {
    torch::mm(torch::ones({2, 2}, torch::kDouble), torch::ones({2, 2}));
  });
  EXPECT_THAT(fp64, HasSubstr("mm(fp64, fp32)"));
  EXPECT_THAT(fp64, HasSubstr("FP64"));
  const std::string convolution = message_of([&] {
    torch::conv2d(torch::ones({1, 1, 3, 3}), torch::ones({1, 1, 2, 2}, torch::kDouble));
  });
  EXPECT_THAT(convolution, HasSubstr("conv2d(fp32, fp64)"));
  EXPECT_THAT(message_of([&] {
                torch::mm(torch::ones({2, 3}), torch::ones({2, 3}));
              }),
              Not(HasSubstr("[autocast")));
  OpPolicy cured;
  cured.set("dot", OpCategory::promote);
  Autocast inner(torch::kCPU, AutocastOptions{.policy = cured});
  EXPECT_EQ(torch::dot(a, b).item<float>(), 3);
}

// What the advice says must cure: a rule where one helps, and no rule where none does.
TEST(Autocast, ADtypeErrorAdvisesNoRuleThatWouldNotHelp) {
  Autocast region(torch::kCPU, torch::kBFloat16);
  const auto x = torch::ones({2, 2});
  for (const std::string& message :
       {message_of([&] { torch::mm(x.to(torch::kLong), x); }),
        message_of([&] { torch::embedding_bag(x, x[0], torch::arange(2)); }),
        message_of([&] { torch::nll_loss(x, x[0]); })}) {
    EXPECT_THAT(message, HasSubstr("cast the one that LibTorch's message names yourself"));
    EXPECT_THAT(message, Not(HasSubstr("policy.set")));
  }
  OpPolicy low;
  low.set("linalg_inv", OpCategory::lower_precision);
  Autocast inner(torch::kCPU, AutocastOptions{.policy = low});
  EXPECT_THAT(message_of([&] { torch::linalg_inv(x + torch::eye(2)); }),
              HasSubstr("policy.set(\"linalg_inv\", demi::OpCategory::fp32)"));
}

TEST(Autocast, OneWarningForADtypeThatIsSlowHere) {
  RecordedWarnings warnings;
  { Autocast region(torch::kCPU, torch::kHalf); }
  { Autocast region(torch::kCPU, torch::kHalf); }
  EXPECT_LE(warnings.messages().size(), 1u);
  EXPECT_EQ(warnings.holding("verrid"), 0);
}

TEST(Apply, OnePartOfAModelRunsInItsOwnDtype) {
  torch::nn::Sequential model(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
  demi::apply(Policy("float32"), *model, "1");
  {
    Autocast region(torch::kCPU);
    const auto x = torch::ones({2, 4});
    EXPECT_EQ(model[0]->as<torch::nn::Linear>()->forward(x).scalar_type(), torch::kBFloat16);
    EXPECT_EQ(model->forward(x).scalar_type(), torch::kFloat);
    EXPECT_EQ(model->forward(torch::ones({2, 1, 4})).scalar_type(), torch::kFloat);
    unapply(*model);
    EXPECT_EQ(model->forward(x).scalar_type(), torch::kBFloat16);
  }
  EXPECT_THAT(message_of([&] { demi::apply(Policy(), *model, "2"); }), HasSubstr("known: 0, 1"));
  demi::apply(Policy("bfloat16"), *model);
  EXPECT_EQ(model->parameters()[0].scalar_type(), torch::kBFloat16);
  unapply(*model);
}

TEST(Apply, AnOpPolicyNamesThePartsThatStayInFp32) {
  torch::nn::Sequential model(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
  OpPolicy policy;
  policy.keep_part_in_fp32("1").keep_part_in_fp32("7");
  EXPECT_THAT(message_of([&] { demi::apply(policy, *model); }), HasSubstr("known: 0, 1"));
  EXPECT_EQ(count_marked_parameters(), 0) << "nothing was changed";
  demi::apply(OpPolicy().keep_part_in_fp32("1"), *model);
  Autocast region(torch::kCPU);
  const auto x = torch::ones({2, 4});
  EXPECT_EQ(model[0]->as<torch::nn::Linear>()->forward(x).scalar_type(), torch::kBFloat16);
  EXPECT_EQ(model->forward(x).scalar_type(), torch::kFloat);
  unapply(*model);
}

// Every op of the process would go on looking its arguments up.
TEST(Apply, OnAModelThatIsGoneIsForgottenByTheNextRegion) {
  {
    torch::nn::Linear model(4, 4);
    demi::apply(Policy("float32"), *model);
    const Autocast region(torch::kCPU);
    EXPECT_EQ(count_marked_parameters(), 2);
  }
  EXPECT_EQ(count_marked_parameters(), 2);
  const Autocast region(torch::kCPU);
  EXPECT_EQ(count_marked_parameters(), 0);
}

TEST(Apply, NormalisationIsStoredAsThePolicySaysAndTheLastPolicyCounts) {
  torch::nn::BatchNorm1d norm(4);
  demi::apply(Policy("bfloat16"), *norm);
  EXPECT_EQ(norm->weight.scalar_type(), torch::kBFloat16);
  EXPECT_EQ(norm->running_mean.scalar_type(), torch::kBFloat16);
  unapply(*norm);
  torch::nn::Linear layer(4, 4);
  demi::apply(Policy("float32"), *layer);
  demi::apply(Policy("mixed_bfloat16"), *layer);
  Autocast region(torch::kCPU, torch::kHalf);
  EXPECT_EQ(layer->forward(torch::ones({2, 4})).scalar_type(), torch::kBFloat16);
  unapply(*layer);
}

using Layers = std::shared_ptr<torch::nn::SequentialImpl>;

Layers clone_of(const Layers& module) {
  return std::dynamic_pointer_cast<torch::nn::SequentialImpl>(module->clone());
}

// Target networks, averages, a module for each thread: copies of a model that keeps a part in FP32.
TEST(Apply, ACloneKeepsThePolicyWhereverItGoes) {
  const auto x = torch::ones({2, 4});
  const auto dtype_of = [&](const Layers& model) { return model->forward(x).scalar_type(); };
  auto model =
      std::make_shared<torch::nn::SequentialImpl>(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
  demi::apply(Policy("float32"), *model, "1");
  std::vector<Layers> copies{clone_of(model)};
  copies.push_back(clone_of(copies[0]));
  copies.push_back(std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->clone(torch::kCPU)));
  {
    const Autocast region(torch::kCPU);
    for (const auto& copy : copies) EXPECT_EQ(dtype_of(copy), torch::kFloat);
  }
  copies[0]->to(torch::kDouble);  // another memory
  copies[0]->to(torch::kFloat);
  copies.push_back(clone_of(copies[0]));
  unapply(*model);
  {
    const Autocast region(torch::kCPU);
    EXPECT_EQ(dtype_of(model), torch::kBFloat16);
    model.reset();
    for (const auto& copy : copies) EXPECT_EQ(dtype_of(copy), torch::kFloat);
    demi::apply(Policy("mixed_float16"), *copies[1], "1");
    EXPECT_EQ(dtype_of(copies[1]), torch::kHalf);
    EXPECT_EQ(dtype_of(clone_of(copies[1])), torch::kHalf) << "not the policy it was made with";
    unapply(*copies[2]);
    EXPECT_EQ(dtype_of(copies[2]), torch::kBFloat16);
    EXPECT_EQ(dtype_of(copies[3]), torch::kFloat);
  }
  copies.clear();
  const Autocast next(torch::kCPU);
  EXPECT_EQ(count_marked_parameters(), 0);
}

TEST(Apply, OnlyCopiesOutsideOfAGraphAreParameters) {
  torch::nn::Linear layer(4, 4), plain(4, 4);
  demi::apply(Policy("float32"), *layer);
  const Autocast region(torch::kCPU);
  const auto product = [](const at::Tensor& w) { return torch::mm(w, w).scalar_type(); };
  EXPECT_EQ(product(layer->weight), torch::kFloat);
  EXPECT_EQ(product(layer->weight.clone()), torch::kBFloat16);
  const torch::NoGradGuard no_grad;
  EXPECT_EQ(product(layer->weight.clone()), torch::kFloat);
  EXPECT_EQ(product(plain->weight.clone()), torch::kBFloat16);
  unapply(*layer);
}

struct OneParameter : torch::nn::Module {
  at::Tensor p;
  explicit OneParameter(const at::Tensor& value) : p(register_parameter("p", value)) {}
};

TEST(Apply, ReachesABiasOrAnOpOfNoListAndLeavesFp32OpsInFp32) {
  OneParameter part(torch::ones({2}));
  const auto x = torch::ones({2, 2}, torch::kBFloat16), w = torch::ones({2, 2});
  Autocast region(torch::kCPU, torch::kHalf);
  demi::apply(Policy("float32"), part);
  EXPECT_EQ(torch::linear(x, w, part.p).scalar_type(), torch::kFloat) << "the bias decides";
  EXPECT_EQ(torch::linear(x, w, at::Tensor()).scalar_type(), torch::kHalf);
  EXPECT_EQ(torch::mv(x, part.p).scalar_type(), torch::kFloat);
  demi::apply(Policy("mixed_bfloat16"), part);
  EXPECT_EQ(torch::linear(x, w, part.p).scalar_type(), torch::kBFloat16);
  EXPECT_EQ(torch::mv(x, part.p).scalar_type(), torch::kBFloat16);
  EXPECT_EQ(torch::mse_loss(x[0], part.p).scalar_type(), torch::kFloat);
  unapply(part);
}

}  // namespace
}  // namespace demi
