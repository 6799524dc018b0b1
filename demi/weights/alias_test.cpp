// Gradients of a weight whose .grad may have 16 bits: never added up in 16 bits, and left in 16
// bits where there is one.
#include "demi/weights/alias.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "demi/weights/streams_testing.h"
#include "demi/weights/testing.h"

namespace demi::weights {
namespace {

using testing::Weights;

constexpr auto kBf16 = torch::kBFloat16;

class Gradients : public Weights {
 protected:
  void TearDown() override {
    streams_.reset();
    Weights::TearDown();
  }
  void have_streams(bool streams) {
    streams_.reset();
    if (streams) streams_ = std::make_unique<testing::FakeStreams>();
  }
  /// A parameter as a demi optimizer holds it.
  at::Tensor opened() {
    auto p = owned_parameter({8});
    p.set_grad_dtype(std::nullopt);
    return p;
  }

 private:
  std::unique_ptr<testing::FakeStreams> streams_;
};

/// A use in bf16 whose gradient is `factor` everywhere, exact in bf16.
at::Tensor use(const at::Tensor& p, double factor, c10::ScalarType dtype = kBf16) {
  return (low_precision(p, dtype) * torch::full_like(p, factor).to(dtype)).sum().to(torch::kFloat);
}

/// 257 is no number of bf16.
void expect_grad(const at::Tensor& p, double value, c10::ScalarType dtype = torch::kFloat) {
  ASSERT_TRUE(p.grad().defined());
  EXPECT_EQ(p.grad().scalar_type(), dtype);
  EXPECT_TRUE(p.grad().to(torch::kDouble).equal(torch::full_like(p, value, torch::kDouble)))
      << p.grad() << "expected " << value;
}

void forget_grad(const at::Tensor& p) { p.mutable_grad() = at::Tensor(); }

void expect_16_bit_next(const at::Tensor& p) {
  forget_grad(p);
  use(p, 3).backward();
  expect_grad(p, 3, kBf16);
  forget_grad(p);
}

TEST_F(Gradients, OfOneUseStayIn16Bits) {
  const auto p = opened();
  for (int step = 0; step < 3; ++step) expect_16_bit_next(p);
}

TEST_F(Gradients, OfFourHundredUsesAreAddedUpInFP32) {
  for (const bool streams : {false, true}) {
    have_streams(streams);
    for (const bool owned : {true, false}) {
      auto p = owned ? opened() : parameter({8});
      p.set_grad_dtype(std::nullopt);
      enter_region();
      at::Tensor loss = torch::zeros({});
      for (int i = 0; i < 400; ++i) loss = loss + use(p, 4);
      loss.backward();
      leave_region();
      expect_grad(p, 1600);
    }
  }
}

TEST_F(Gradients, OfTwoArgumentsOfOneOpAreAddedUpInFP32) {
  const auto p = opened();
  const auto factor = [&](double f) { return torch::full({8}, f).to(kBf16); };
  {
    const auto a = low_precision(p, kBf16), b = low_precision(p, kBf16),
               c = low_precision(p, kBf16);
    (a * factor(256) + b * factor(1) + c * factor(1)).sum().backward();
  }
  expect_grad(p, 258);
  expect_16_bit_next(p);
}

TEST_F(Gradients, BesideUsesInFP32AndViews) {
  using Use = std::function<at::Tensor(const at::Tensor&)>;
  const Use in_fp32 = [](const at::Tensor& p) { return p.sum(); };
  const Use view = [](const at::Tensor& p) {
    return low_precision(p.view({2, 4}), kBf16).sum().to(torch::kFloat);
  };
  for (const auto& other : {in_fp32, view})
    for (const bool before : {true, false}) {
      const auto p = opened();
      for (int step = 0; step < 3; ++step) {
        forget_grad(p);
        at::Tensor loss = torch::zeros({});
        if (!before) loss = loss + use(p, 256);
        for (int i = 0; i < 300; ++i) loss = loss + other(p);
        if (before) loss = loss + use(p, 256);
        loss.backward();
        expect_grad(p, 556);
      }
      expect_16_bit_next(p);
    }
}

TEST_F(Gradients, OfOneViewUsedManyTimes) {
  const auto p = opened();
  for (int step = 0; step < 3; ++step) {
    forget_grad(p);
    const auto view = p.view({2, 4});
    at::Tensor loss = use(p, 256);
    for (int i = 0; i < 300; ++i) loss = loss + low_precision(view, kBf16).sum().to(torch::kFloat);
    loss.backward();
    expect_grad(p, 556);
  }
  expect_16_bit_next(p);
}

TEST_F(Gradients, OfOneViewUsedManyTimesWhereTheLeafAsksFor16Bits) {
  const auto p = owned_parameter({8});
  p.set_grad_dtype(kBf16);
  const auto view = p.view({2, 4});
  at::Tensor loss = torch::zeros({});
  for (int i = 0; i < 400; ++i) loss = loss + use(view, 4);
  loss.backward();
  expect_grad(p, 1600, kBf16);
}

/// An op on FP32 whose gradient has 16 bits all the same.
struct BackwardIn16Bits : torch::autograd::Function<BackwardIn16Bits> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0].to(kBf16)};
  }
};

/// torch::nn::Linear multiplies by such a view.
at::Tensor use_view(const at::Tensor& p, double factor) { return use(p.view({2, 4}), factor); }

TEST_F(Gradients, OfOneViewStayIn16Bits) {
  for (const bool streams : {false, true}) {
    have_streams(streams);
    const auto p = opened();
    for (int step = 0; step < 3; ++step) {
      forget_grad(p);
      use_view(p, 3).backward();
      expect_grad(p, 3, kBf16);
    }
    expect_16_bit_next(p);
  }
}

TEST_F(Gradients, OfOneViewStayIn16BitsWhereTheLossOfTheStepBeforeLives) {
  for (const bool streams : {false, true}) {
    have_streams(streams);
    const auto p = opened();
    at::Tensor loss;
    for (int step = 0; step < 6; ++step) {
      forget_grad(p);
      loss = use_view(p, 3);
      loss.backward();
      expect_grad(p, 3, kBf16);
    }
  }
}

// Somebody holds the view, and may have used it elsewhere.
TEST_F(Gradients, OfOneViewThatOutlivesItsGraphsAreFP32) {
  const auto p = opened();
  const auto view = p.view({2, 4});
  for (int step = 0; step < 3; ++step) {
    forget_grad(p);
    use(view, 3).backward();
    expect_grad(p, 3);
  }
  expect_16_bit_next(p);
}

TEST_F(Gradients, OfAViewThatHasElementsSeveralTimesAreAddedUpInFP32) {
  using View = std::function<at::Tensor(const at::Tensor&)>;
  const std::vector<std::pair<const char*, View>> views{
      {"unfold", [](const at::Tensor& p) { return p.unfold(0, 512, 1); }},
      {"as_strided",
       [](const at::Tensor& p) {
         return p.as_strided({512, 512}, {1, 1});
       }},
      {"expand",
       [](const at::Tensor& p) {
         return p.expand({512, 1024});
       }},
      {"expand_as",
       [](const at::Tensor& p) {
         return p.expand_as(torch::empty({512, 1024}));
       }},
      {"broadcast_to",
       [](const at::Tensor& p) {
         return p.broadcast_to({512, 1024});
       }},
      {"unfold of a view",
       [](const at::Tensor& p) {
         return p.view({2, 512}).unfold(1, 256, 1);
       }},
      {"view of unfold", [](const at::Tensor& p) { return p.unfold(0, 512, 1).t(); }},
  };
  for (const auto& [name, view] : views) {
    // The number of times that a view has an element is the gradient of its plain sum.
    const auto plain = torch::ones({1024}).requires_grad_();
    view(plain).sum().backward();
    const auto& counts = plain.grad();
    ASSERT_GT(counts.max().item<float>(), 255) << name;
    auto p = owned_parameter({1024});
    p.set_grad_dtype(std::nullopt);
    const auto loss = low_precision(view(p), kBf16).sum().to(torch::kFloat);
    loss.backward();  // the view is gone: one that lives gets FP32 anyway
    EXPECT_TRUE(p.grad().to(torch::kFloat).equal(counts)) << name;
  }
}

TEST_F(Gradients, OfViewsThatMoveElementsStayIn16Bits) {
  using View = std::function<at::Tensor(const at::Tensor&)>;
  const std::vector<std::pair<const char*, View>> views{
      {"t", [](const at::Tensor& p) { return p.t(); }},
      {"transpose", [](const at::Tensor& p) { return p.transpose(0, 1); }},
      {"permute",
       [](const at::Tensor& p) {
         return p.permute({1, 0});
       }},
      {"view", [](const at::Tensor& p) { return p.view({8}); }},
      {"reshape",
       [](const at::Tensor& p) {
         return p.reshape({4, 2});
       }},
      {"flatten", [](const at::Tensor& p) { return p.flatten(); }},
      {"unsqueeze", [](const at::Tensor& p) { return p.unsqueeze(1); }},
      {"squeeze", [](const at::Tensor& p) { return p.squeeze(); }},
      {"select", [](const at::Tensor& p) { return p[1]; }},
      {"narrow", [](const at::Tensor& p) { return p.narrow(1, 1, 2); }},
      {"diagonal", [](const at::Tensor& p) { return p.diagonal(); }},
      {"chunk", [](const at::Tensor& p) { return p.chunk(2, 1)[1]; }},
  };
  for (const auto& [name, view] : views) {
    const auto plain = torch::ones({2, 4}).requires_grad_();
    (view(plain) * 3).sum().backward();
    auto p = owned_parameter({2, 4});
    p.set_grad_dtype(std::nullopt);
    const auto loss = use(view(p), 3);  // the view itself is gone
    loss.backward();
    EXPECT_TRUE(p.grad().to(torch::kFloat).equal(plain.grad())) << name;
    const bool fills_up_in_fp32 = std::string_view(name) == "chunk";
    EXPECT_EQ(p.grad().scalar_type(), fills_up_in_fp32 ? torch::kFloat : kBf16) << name;
  }
}

// Code that reads the gradient of a view sees FP32, as without copies, and may return FP32.
TEST_F(Gradients, OfAViewThatIsLookedAtAreFP32) {
  const auto p = opened();
  {
    const auto view = p.view({2, 4});
    const auto loss = use(view, 3);
    EXPECT_EQ(torch::autograd::grad({loss}, {view})[0].scalar_type(), torch::kFloat);
  }
  at::Tensor seen;
  const auto hooked = [&] {
    const auto view = p.view({2, 4});
    view.register_hook([&](const at::Tensor& g) {
      seen = g;
      return torch::full_like(g, 257, torch::kFloat);
    });
    return use(view, 3);
  }();
  hooked.backward();
  EXPECT_EQ(seen.scalar_type(), torch::kFloat);
  expect_grad(p, 257);
  forget_grad(p);
  const auto retained = p.view({2, 4});
  retained.retain_grad();
  use(retained, 3).backward();
  EXPECT_EQ(retained.grad().scalar_type(), torch::kFloat);
  expect_grad(p, 3);
  expect_16_bit_next(p);
}

// A view that a program's own function makes has whatever backward that function has.
struct ViewTimesThousand : torch::autograd::Function<ViewTimesThousand> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x.view_as(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    EXPECT_EQ(gradients[0].scalar_type(), torch::kFloat);
    return {gradients[0] * 1000 + 1};
  }
};

TEST_F(Gradients, OfAViewByAFunctionOfAProgramsOwn) {
  const auto p = opened();
  const auto loss = use(ViewTimesThousand::apply(p), 3);
  loss.backward();  // the view is gone: one that lives gets FP32 anyway
  expect_grad(p, 3001);
}

TEST_F(Gradients, OfManyViewsAreAddedUpInFP32) {
  for (const bool streams : {false, true}) {
    have_streams(streams);
    const auto p = opened();
    for (int step = 0; step < 2; ++step) {
      forget_grad(p);
      at::Tensor loss = torch::zeros({});
      for (int i = 0; i < 400; ++i) loss = loss + use_view(p, 4);
      loss.backward();
      expect_grad(p, 1600);
    }
  }
}

TEST_F(Gradients, OfOneViewThatIsUsedTwiceAreAddedUpInFP32) {
  const auto p = opened();
  const auto view = p.view({2, 4});
  for (int step = 0; step < 2; ++step) {
    forget_grad(p);
    (use(view, 256) + use(view, 1)).backward();
    expect_grad(p, 257);
  }
}

// 257 is no number of bf16.
TEST_F(Gradients, OfOneViewThatAnOpInFP32UsesTooAreAddedUpInFP32) {
  for (const bool first : {false, true}) {
    const auto p = opened();
    const auto view = p.view({2, 4});
    at::Tensor loss = torch::zeros({});
    if (first) loss = loss + view.sum();
    loss = loss + use(view, 256);
    if (!first) loss = loss + view.sum();
    loss.backward();
    expect_grad(p, 257);
  }
}

TEST_F(Gradients, OfOneViewThatAnOpInFP32UsesTooWhoseNodeIsAllThatIsLeft) {
  for (const bool first : {false, true})
    for (const bool keeps : {false, true}) {
      const auto p = opened();
      at::Tensor loss = torch::zeros({}), kept;
      {
        const auto view = p.view({2, 4});
        if (first) loss = loss + BackwardIn16Bits::apply(view).sum();
        for (int i = 0; i < 3; ++i) loss = loss + use(view, i ? 1 : 256);
        if (!first) loss = loss + BackwardIn16Bits::apply(view).sum();
        if (keeps) kept = view;
      }
      loss.backward();
      expect_grad(p, 259);
    }
}

TEST_F(Gradients, OfAViewBesideAnOpInFP32) {
  for (const bool first : {false, true}) {
    const auto p = opened();
    at::Tensor loss = torch::zeros({});
    if (first) loss = loss + p.sum();  // its graph holds LibTorch's accumulator
    loss = loss + use_view(p, 256);
    if (!first) loss = loss + p.sum();
    loss.backward();
    expect_grad(p, 257);
  }
}

TEST_F(Gradients, OfAViewOfAView) {
  const auto p = opened();
  use(p.view({2, 4}).t(), 3).backward();
  expect_grad(p, 3);
}

TEST_F(Gradients, OfSeveralViewsOfOneNode) {
  const auto p = opened();
  const auto halves = p.chunk(2);
  (use(halves[0], 3) + use(halves[1], 3)).backward();
  expect_grad(p, 3);
  forget_grad(p);
  use(p.chunk(2)[0], 3).backward();
  EXPECT_EQ(p.grad().sum().item<double>(), 4 * 3);
}

TEST_F(Gradients, OfAViewWhereTheLeafTakesFP32Alone) {
  const auto p = owned_parameter({8});
  use_view(p, 3).backward();
  expect_grad(p, 3);
}

TEST_F(Gradients, Of16BitsFromUsesInFP32AreAddedUpInFP32) {
  const auto p = opened();
  at::Tensor loss = use(p, 256);
  for (int i = 0; i < 300; ++i) loss = loss + BackwardIn16Bits::apply(p).sum();
  loss.backward();
  expect_grad(p, 556);
}

TEST_F(Gradients, AGraphThatWasThrownAwayLeavesNothingBehind) {
  const auto p = opened();
  use(p, 1);
  for (int i = 0; i < 3; ++i) use(p, 1) + use(p, 2);
  expect_16_bit_next(p);
}

TEST_F(Gradients, StayIn16BitsWhereTheLossOfTheStepBeforeLives) {
  for (const bool streams : {false, true}) {
    have_streams(streams);
    const auto p = opened();
    at::Tensor loss;
    for (int step = 0; step < 6; ++step) {
      forget_grad(p);
      loss = use(p, 3);
      loss.backward();
      expect_grad(p, 3, kBf16);
    }
  }
}

TEST_F(Gradients, OfSeveralLivingGraphsAreAddedUpInFP32InOneBackward) {
  for (const bool streams : {false, true}) {
    have_streams(streams);
    const auto p = opened();
    const auto a = use(p, 256), b = use(p, 1), c = use(p, 1);
    a.backward({}, /*retain_graph=*/true);
    expect_grad(p, 256, kBf16);
    forget_grad(p);
    torch::autograd::backward({a, b, c}, {});
    expect_grad(p, 258);
  }
}

TEST_F(Gradients, OfSecondBackwardsOverLivingGraphs) {
  const auto p = opened();
  std::vector<at::Tensor> losses;
  for (int i = 0; i < 6; ++i) {
    losses.push_back(use(p, i ? 1 : 256));
    losses.back().backward({}, /*retain_graph=*/true);
    forget_grad(p);
  }
  torch::autograd::backward(losses, {});
  expect_grad(p, 261);
}

TEST_F(Gradients, InTwoDtypesAtOnce) {
  const auto p = opened();
  {
    at::Tensor loss = torch::zeros({});
    for (int i = 0; i < 3; ++i) {
      loss = loss + use(p, 256);
      loss = loss + use(p, 1, torch::kHalf);
    }
    loss.backward();
  }
  expect_grad(p, 771);
  expect_16_bit_next(p);
}

TEST_F(Gradients, AHookSeesTheirSumOnce) {
  const auto p = opened();
  std::vector<double> seen;
  p.register_hook([&](const at::Tensor& g) {
    seen.push_back(g[0].item<double>());
    return g * 2;
  });
  (use(p, 256) + use(p, 1)).backward();
  EXPECT_EQ(seen, std::vector<double>{257});
  expect_grad(p, 514);
}

TEST_F(Gradients, ByAutogradGradAndTwice) {
  const auto p = opened();
  const auto g = torch::autograd::grad({use(p, 256) + use(p, 1)}, {p})[0];
  EXPECT_TRUE(g.equal(torch::full({8}, 257.)));
  EXPECT_FALSE(p.grad().defined());

  at::Tensor loss = torch::zeros({});
  for (int i = 0; i < 3; ++i) loss = loss + low_precision(p, kBf16).pow(2).sum().to(torch::kFloat);
  const auto first = torch::autograd::grad({loss}, {p}, {}, {}, /*create_graph=*/true)[0];
  const auto second = torch::autograd::grad({first.sum()}, {p})[0];
  EXPECT_TRUE(second.to(torch::kFloat).equal(torch::full({8}, 6.))) << second;
}

TEST_F(Gradients, AreFP32AgainWhenTheOptimizerIsGoneBeforeBackward) {
  const auto p = opened();
  const auto loss = use(p, 3);
  p.set_grad_dtype(torch::kFloat);
  loss.backward();
  expect_grad(p, 3);
}

TEST_F(Gradients, OpenedWhileAnAliasIsKept) {
  const auto p = owned_parameter({8});
  use(p, 1).backward();
  expect_grad(p, 1);
  p.set_grad_dtype(std::nullopt);
  expect_16_bit_next(p);
  const auto alive = use(p, 1);
  p.set_grad_dtype(torch::kFloat);
  (use(p, 256) + use(p, 1) + alive).backward();
  expect_grad(p, 258);
}

TEST_F(Gradients, ByAnAccumulatorThatLibTorchMadeFirst) {
  const auto p = opened();
  {
    const auto penalty = p.sum();  // its graph holds LibTorch's accumulator
    at::Tensor loss = penalty;
    for (int i = 0; i < 300; ++i) loss = loss + use(p, i ? 1 : 256);
    loss.backward();
    expect_grad(p, 556);
  }
  expect_16_bit_next(p);
}

TEST_F(Gradients, OfDataOfAnotherShape) {
  const auto p = opened();
  use(p, 1).backward();
  forget_grad(p);
  p.set_data(torch::ones({3, 5}));
  use(p, 256).backward();
  expect_grad(p, 256, kBf16);
  forget_grad(p);
  (use(p, 256) + use(p, 1)).backward();
  expect_grad(p, 257);
}

TEST_F(Gradients, OfACopyMadeAnewInEveryStep) {
  const auto p = opened();
  at::Tensor loss;
  for (int step = 0; step < 4; ++step) {
    forget_grad(p);
    p.data().add_(1);
    loss = use(p, 3);
    loss.backward();
    expect_grad(p, 3, kBf16);
  }
}

TEST_F(Gradients, OfTwoThreadsInOneGraph) {
  const auto p = opened();
  for (int round = 0; round < 100; ++round) {
    forget_grad(p);
    at::Tensor a, b;
    std::thread other([&] { a = use(p, 256); });
    b = use(p, 1);
    other.join();
    (a + b).backward();
    expect_grad(p, 257);
  }
}

// What autograd takes for "no gradient" is then LibTorch's to say.
TEST_F(Gradients, OfAViewMadeUnderNoGrad) {
  const auto p = owned_parameter({4, 4});
  for (const auto dtype :
       {std::optional(kBf16), std::optional(torch::kFloat), std::optional<c10::ScalarType>()}) {
    p.set_grad_dtype(dtype);
    at::Tensor view;
    {
      torch::NoGradGuard no_grad;
      view = p.t();
    }
    const auto ours = low_precision(view, kBf16), theirs = view.to(kBf16);
    EXPECT_TRUE(ours.detach().equal(theirs.detach()));
    EXPECT_EQ(ours.requires_grad(), theirs.requires_grad());
    if (ours.requires_grad()) ours.sum().backward();
    EXPECT_FALSE(p.grad().defined());
  }
}

bool has_accumulator(const at::Tensor& p) {
  return static_cast<bool>(torch::autograd::impl::try_get_grad_accumulator(p));
}

// An accumulator belongs to the stream that was current when it was made; one that outlives its
// graph breaks the capture of a later one on another stream.
TEST_F(Gradients, HoldNoAccumulatorBetweenGraphsOnDevicesWithStreams) {
  for (const bool open : {true, false}) {
    const auto p = open ? opened() : owned_parameter({8});
    have_streams(true);
    reset_stats();
    use(p, 3).backward();
    EXPECT_EQ(stats().copies, open ? 1 : 2) << "the copy stays";
    EXPECT_FALSE(has_accumulator(p));
    forget_grad(p);
    use(p, 3).backward();
    EXPECT_EQ(stats().casts, 1);
    drop();  // its events are of those streams
    have_streams(false);
    use(p, 3).backward();
    EXPECT_TRUE(has_accumulator(p));
  }
}

}  // namespace
}  // namespace demi::weights
