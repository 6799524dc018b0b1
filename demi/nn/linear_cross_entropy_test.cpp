#include "demi/nn/linear_cross_entropy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "demi/autocast/autocast.h"
#include "demi/core/error.h"
#include "demi/profile/memory.h"

// The truth is LibTorch's own linear and cross_entropy_loss.
namespace demi {
namespace {

using testing::HasSubstr;

struct Head {
  at::Tensor input, weight, bias, class_weight, target;

  explicit Head(at::IntArrayRef rows = {37}, int64_t width = 12, int64_t classes = 150,
                at::ScalarType dtype = torch::kDouble) {
    torch::manual_seed(5);
    auto sizes = rows.vec();
    sizes.push_back(width);
    const auto options = torch::TensorOptions(dtype);
    input = torch::randn(sizes, options).requires_grad_();
    weight = torch::randn({classes, width}, options).requires_grad_();
    bias = torch::randn({classes}, options).requires_grad_();
    class_weight = torch::rand({classes}, options) + 0.1;
    target = torch::randint(classes, rows, torch::kLong);
  }
  std::vector<at::Tensor> leaves(bool with_bias) const {
    return with_bias ? std::vector<at::Tensor>{input, weight, bias}
                     : std::vector<at::Tensor>{input, weight};
  }
};

Head of_rows(at::IntArrayRef rows) { return Head(rows); }

at::Tensor plain(const Head& head, const LinearCrossEntropyOptions& o) {
  auto logits = torch::linear(head.input, head.weight, o.linear_bias);
  if (o.softcap > 0) logits = o.softcap * torch::tanh(logits / o.softcap);
  const auto loss =
      at::cross_entropy_loss(logits.reshape({-1, logits.size(-1)}), head.target.reshape(-1),
                             o.weight, int64_t(o.reduction), o.ignore_index, o.label_smoothing);
  return o.reduction == Reduction::none ? loss.reshape(head.target.sizes()) : loss;
}

// Gradients of the loss times something that is not 1, as a loss scale is.
std::vector<at::Tensor> gradients(const at::Tensor& loss, const std::vector<at::Tensor>& leaves) {
  const auto factor = torch::arange(1, loss.numel() + 1, loss.options()).reshape(loss.sizes()) * 3;
  return torch::autograd::grad({loss}, leaves, {factor});
}

void expect_plain(const Head& head, const LinearCrossEntropyOptions& o) {
  const auto leaves = head.leaves(o.linear_bias.defined());
  const auto want = plain(head, o),
             got = linear_cross_entropy(head.input, head.weight, head.target, o);
  EXPECT_EQ(got.sizes(), want.sizes());
  EXPECT_EQ(got.scalar_type(), want.scalar_type());
  EXPECT_TRUE(torch::allclose(got, want, 1e-11, 1e-12, true)) << got << want;
  const auto got_all = gradients(got, leaves), want_all = gradients(want, leaves);
  for (std::size_t i = 0; i < leaves.size(); ++i)
    EXPECT_TRUE(torch::allclose(got_all[i], want_all[i], 1e-10, 1e-12)) << "gradient " << i;
}

TEST(LinearCrossEntropy, HasThePlainLossAndGradientsWithEveryOption) {
  const Head head;
  for (const auto reduction : {Reduction::none, Reduction::mean, Reduction::sum})
    for (const double smoothing : {0.0, 0.1, 1.0})
      for (const bool weighted : {false, true})
        for (const bool biased : {false, true})
          for (const int64_t ignored : {-100L, head.target[3].item<int64_t>()}) {
            LinearCrossEntropyOptions o{.reduction = reduction,
                                        .ignore_index = ignored,
                                        .label_smoothing = smoothing,
                                        .batch_chunk_size = 3};
            if (weighted) o.weight = head.class_weight;
            if (biased) o.linear_bias = head.bias;
            SCOPED_TRACE(testing::Message() << int(reduction) << ' ' << smoothing << ' ' << weighted
                                            << ' ' << biased << ' ' << ignored);
            expect_plain(head, o);
          }
}

TEST(LinearCrossEntropy, TakesAnyNumberOfDimensionsAndAnyPiece) {
  expect_plain(of_rows({}), {});
  expect_plain(of_rows({1}), {});
  expect_plain(of_rows({4, 5}), {});
  expect_plain(of_rows({2, 3, 5}), {.reduction = Reduction::none});
  for (const int64_t rows : {1, 2, 36, 37, 1000})
    expect_plain(Head(), {.label_smoothing = 0.1, .batch_chunk_size = rows});
  expect_plain(Head({70}, 3, 9000), {});  // 5 MB, in several
}

TEST(LinearCrossEntropy, CapsTheLogits) {
  for (const auto reduction : {Reduction::none, Reduction::mean})
    for (const double softcap : {0.5, 15.0}) {
      const Head head;
      expect_plain(head, {.linear_bias = head.bias,
                          .weight = head.class_weight,
                          .reduction = reduction,
                          .label_smoothing = 0.1,
                          .softcap = softcap,
                          .batch_chunk_size = 5});
    }
}

TEST(LinearCrossEntropy, SaysWhichTargetsHaveTheLargestLogit) {
  for (const auto reduction : {Reduction::none, Reduction::mean}) {
    Head head(at::IntArrayRef{9, 5});
    head.bias.data()[0] += 4;  // the class that stands for an ignored one wins now and then
    const auto best = torch::linear(head.input, head.weight, head.bias).argmax(-1);
    head.target.select(1, 2).copy_(best.select(1, 2));
    head.target.masked_fill_(best.eq(0).logical_and_(torch::rand({9, 5}).lt(0.5)), -100);
    const LinearCrossEntropyOptions o{
        .linear_bias = head.bias, .reduction = reduction, .batch_chunk_size = 4};
    const auto both = linear_cross_entropy_and_right(head.input, head.weight, head.target, o);
    EXPECT_TRUE(torch::equal(both.right, head.target.eq(best)));
    EXPECT_GE(both.right.sum().item<int64_t>(), 3);
    EXPECT_GE(head.target.eq(-100).sum().item<int64_t>(), 3);
    EXPECT_TRUE(
        torch::equal(both.loss, linear_cross_entropy(head.input, head.weight, head.target, o)));
    EXPECT_FALSE(both.right.requires_grad());
    EXPECT_TRUE(both.loss.requires_grad());
  }
}

TEST(LinearCrossEntropy, TakesTensorsThatAreNotContiguous) {
  Head head;
  head.input = torch::randn({12, 37}, torch::kDouble).t().requires_grad_();
  head.weight =
      torch::randn({150, 24}, torch::kDouble).slice(1, 0, 24, 2).detach().requires_grad_();
  expect_plain(head, {});
}

TEST(LinearCrossEntropy, MakesOnlyTheGradientsThatAreWanted) {
  Head head;
  head.input.requires_grad_(false);
  linear_cross_entropy(head.input, head.weight, head.target).backward();
  EXPECT_TRUE(head.weight.grad().defined());
  EXPECT_FALSE(head.input.grad().defined());
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(linear_cross_entropy(head.input, head.weight, head.target).requires_grad());
}

TEST(LinearCrossEntropy, OfNoTargetThatCountsIsNaNWithGradientsOfZero) {
  Head head;
  head.target.fill_(-100);
  const auto mean = linear_cross_entropy(head.input, head.weight, head.target);
  EXPECT_TRUE(std::isnan(mean.item<double>()));
  mean.backward();
  EXPECT_EQ(head.input.grad().abs().max().item<double>(), 0);
  EXPECT_EQ(head.weight.grad().abs().max().item<double>(), 0);
  EXPECT_EQ(
      linear_cross_entropy(head.input, head.weight, head.target, {.reduction = Reduction::sum})
          .item<double>(),
      0);
}

TEST(LinearCrossEntropy, OfNoRows) {
  const Head head = of_rows({0});
  const auto loss =
      linear_cross_entropy(head.input, head.weight, head.target, {.reduction = Reduction::sum});
  EXPECT_EQ(loss.item<double>(), 0);
  loss.backward();
  EXPECT_EQ(head.weight.grad().abs().max().item<double>(), 0);
  EXPECT_EQ(head.input.grad().sizes(), head.input.sizes());
  EXPECT_TRUE(
      std::isnan(linear_cross_entropy(head.input, head.weight, head.target).item<double>()));
}

TEST(LinearCrossEntropy, BackwardRunsTwiceOnARetainedGraphAndOnceOtherwise) {
  const Head head;
  for (const auto reduction : {Reduction::none, Reduction::mean}) {
    const auto loss =
        linear_cross_entropy(head.input, head.weight, head.target, {.reduction = reduction}).sum();
    const auto first = torch::autograd::grad({loss}, {head.input, head.weight}, {}, true);
    const auto second = torch::autograd::grad({loss}, {head.input, head.weight});
    EXPECT_TRUE(torch::equal(first[0], second[0]));
    EXPECT_TRUE(torch::equal(first[1], second[1]));
    EXPECT_THROW(torch::autograd::grad({loss}, {head.input}), c10::Error);
  }
}

TEST(LinearCrossEntropy, RefusesGradientsOfGradients) {
  const Head head;
  for (const auto reduction : {Reduction::none, Reduction::sum}) try {
      const auto loss =
          linear_cross_entropy(head.input, head.weight, head.target, {.reduction = reduction});
      torch::autograd::grad({loss.sum()}, {head.input}, {}, true, true);
      ADD_FAILURE() << "nothing thrown";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("create_graph"));
    }
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "nothing";
}

TEST(LinearCrossEntropy, RefusesWhatDoesNotFit) {
  const Head head;
  const auto with = [&](const at::Tensor& target, const LinearCrossEntropyOptions& o = {}) {
    return refusal([&] { linear_cross_entropy(head.input, head.weight, target, o); });
  };
  auto wrong = head.target.clone();
  wrong[7] = 150;
  EXPECT_THAT(
      with(wrong),
      HasSubstr(
          "[nn.linear_cross_entropy] a target is out of range; seen: 150; accepted: 0 to 149"));
  wrong[7] = -1;
  EXPECT_THAT(with(wrong), HasSubstr("seen: -1"));
  EXPECT_THAT(with(head.target.to(torch::kInt)), HasSubstr("int64"));
  EXPECT_THAT(with(torch::rand({37, 150})), HasSubstr("probabilities"));
  EXPECT_THAT(with(head.target.slice(0, 1)), HasSubstr("[36]"));
  EXPECT_THAT(with(head.target, {.label_smoothing = 1.5}), HasSubstr("label_smoothing"));
  EXPECT_THAT(with(head.target, {.label_smoothing = std::numeric_limits<double>::quiet_NaN()}),
              HasSubstr("label_smoothing"));
  EXPECT_THAT(with(head.target, {.batch_chunk_size = 0}), HasSubstr("batch_chunk_size"));
  EXPECT_THAT(with(head.target, {.linear_bias = torch::zeros({3})}), HasSubstr("linear_bias"));
  EXPECT_THAT(with(head.target, {.weight = torch::zeros({150, 1})}), HasSubstr("weight"));
  EXPECT_THAT(refusal([&] {
                linear_cross_entropy(head.input, head.weight.to(torch::kFloat), head.target);
              }),
              HasSubstr("different dtypes"));
  EXPECT_THAT(
      refusal([&] { linear_cross_entropy(head.input.slice(1, 1), head.weight, head.target); }),
      HasSubstr("width"));
}

double error_of(const at::Tensor& got, const at::Tensor& want) {
  return ((got.to(torch::kDouble) - want).norm() / want.norm()).item<double>();
}

class InRegion : public testing::TestWithParam<at::ScalarType> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, InRegion, testing::Values(torch::kHalf, torch::kBFloat16));

// The numbers are those of FP64, rounded to the region's dtype once or twice.
TEST_P(InRegion, IsTheLossOfFp64ToRounding) {
  const Head exact({6, 20}, 32, 400);
  const double bound = GetParam() == torch::kHalf ? 4e-3 : 3e-2;
  for (const auto given : {torch::kFloat, GetParam()}) {
    Head head = exact;
    head.input = exact.input.detach().to(given).requires_grad_();
    head.weight = exact.weight.detach().to(torch::kFloat).requires_grad_();
    at::Tensor loss;
    {
      const Autocast region(torch::kCPU, GetParam());
      loss = linear_cross_entropy(head.input, head.weight, head.target,
                                  {.label_smoothing = 0.1, .batch_chunk_size = 9});
    }
    const auto want = plain(exact, {.label_smoothing = 0.1});
    EXPECT_EQ(loss.scalar_type(), torch::kFloat);
    EXPECT_NEAR(loss.item<double>(), want.item<double>(), bound * want.item<double>());
    loss.backward();
    EXPECT_EQ(head.input.grad().scalar_type(), given);
    EXPECT_EQ(head.weight.grad().scalar_type(), torch::kFloat);
    const auto truth = torch::autograd::grad({want}, {exact.input, exact.weight});
    EXPECT_LT(error_of(head.input.grad(), truth[0]), bound);
    EXPECT_LT(error_of(head.weight.grad(), truth[1]), bound);
  }
}

TEST_P(InRegion, OutsideOfOneTensorsOf16BitsGiveALossOfTheirDtype) {
  const Head exact({40}, 32, 300);
  const auto input = exact.input.detach().to(GetParam()).requires_grad_(),
             weight = exact.weight.detach().to(GetParam()).requires_grad_();
  const auto loss = linear_cross_entropy(input, weight, exact.target);
  EXPECT_EQ(loss.scalar_type(), GetParam());
  loss.backward();
  EXPECT_EQ(weight.grad().scalar_type(), GetParam());
  const auto truth = torch::autograd::grad({plain(exact, {})}, {exact.weight});
  EXPECT_LT(error_of(weight.grad(), truth[0]), 3e-2);
}

// No class from 1,024 up is a target, so their gradients are shares of softmax: about 1e-9 here,
// below fp16's least number, 6e-8.
TEST(LinearCrossEntropy, Fp16GradientsDoNotUnderflow) {
  Head exact({512}, 16, 2048);
  exact.target = torch::randint(1024, {512}, torch::kLong);
  exact.weight = (exact.weight * 0.1).detach();
  exact.bias = torch::zeros({2048}, torch::kDouble);
  exact.bias.slice(0, 1024).fill_(-9);
  exact.weight.requires_grad_();
  const auto input = exact.input.detach().to(torch::kHalf).requires_grad_(),
             weight = exact.weight.detach().to(torch::kFloat).requires_grad_();
  const double scale = 1024;
  {
    const Autocast region(torch::kCPU, torch::kHalf);
    const auto loss =
        linear_cross_entropy(input, weight, exact.target,
                             {.linear_bias = exact.bias.to(torch::kFloat), .batch_chunk_size = 37});
    (loss * scale).backward();
  }
  const auto truth =
      torch::autograd::grad({plain(exact, {.linear_bias = exact.bias})}, {exact.weight})[0];
  const auto rare = truth.slice(0, 1024);
  EXPECT_LT(rare.abs().median().item<double>(), 6e-8);
  EXPECT_LT(error_of(weight.grad().slice(0, 1024) / scale, rare), 2e-2);
}

TEST(LinearCrossEntropy, FollowsTheRegionsPolicy) {
  const Head head({40}, 32, 300, torch::kFloat);
  OpPolicy policy;
  policy.set("aten::linear", OpCategory::fp32);
  const auto want = linear_cross_entropy(head.input, head.weight, head.target);
  const Autocast region(torch::kCPU, {.dtype = torch::kBFloat16, .policy = policy});
  EXPECT_TRUE(torch::equal(linear_cross_entropy(head.input, head.weight, head.target), want));
}

// As linear does: an op that a policy runs in FP32 stays there whatever the part says.
TEST(LinearCrossEntropy, APolicyInFp32CountsMoreThanAPartOf16BitsOrARecipe) {
  const Head head({40}, 32, 300, torch::kFloat);
  const auto want = linear_cross_entropy(head.input, head.weight, head.target);
  OpPolicy policy;
  policy.set("aten::linear", OpCategory::fp32);
  const Autocast region(torch::kCPU, {.dtype = torch::kBFloat16, .policy = policy});
  torch::nn::Linear of_head(torch::nn::LinearOptions(32, 300).bias(false));
  of_head->weight.set_data(head.weight.detach());
  demi::apply(Policy("mixed_bfloat16"), *of_head);
  EXPECT_TRUE(torch::equal(linear_cross_entropy(head.input, of_head->weight, head.target), want));
  demi::apply(OpPolicy().set_part("*", "mxfp8"), *of_head);
  EXPECT_TRUE(torch::equal(linear_cross_entropy(head.input, of_head->weight, head.target), want));
  unapply(*of_head);
}

TEST(LinearCrossEntropy, AWeightOfTwoUsesGetsBothGradients) {
  const Head head({40}, 32, 300, torch::kFloat);
  const auto tokens = torch::randint(300, {40}, torch::kLong);
  const auto gradient = [&](bool by_pieces) {
    const auto hidden = torch::embedding(head.weight, tokens).tanh();
    const auto loss = by_pieces
                          ? linear_cross_entropy(hidden, head.weight, head.target)
                          : at::cross_entropy_loss(torch::linear(hidden, head.weight), head.target);
    return torch::autograd::grad({loss}, {head.weight})[0];
  };
  EXPECT_LT(error_of(gradient(true), gradient(false).to(torch::kDouble)), 1e-5);
}

// Bytes at the peak beyond inputs, results, gradients as the header counts them, and 64 a target.
int64_t held(const Head& head, at::ScalarType region_dtype, const LinearCrossEntropyOptions& o) {
  profile::count_cpu_memory();
  const c10::Device cpu(c10::kCPU);
  const auto before = profile::memory_use(cpu).current_bytes;
  profile::reset_peak_memory(cpu);
  {
    const Autocast region(
        torch::kCPU,
        {.dtype = region_dtype == torch::kFloat ? std::optional<at::ScalarType>() : region_dtype,
         .enabled = region_dtype != torch::kFloat});
    linear_cross_entropy(head.input, head.weight, head.target, o).sum().backward();
  }
  auto made = int64_t(head.weight.grad().nbytes() + head.input.grad().nbytes());
  if (head.input.scalar_type() != torch::kFloat) made += head.input.numel() * 4;
  return profile::memory_use(cpu).peak_bytes - before - made - 64 * head.target.numel();
}

void expect_held_at_most(double bytes, int64_t rows, int64_t width, int64_t classes) {
  for (const auto dtype : {torch::kFloat, torch::kHalf, torch::kBFloat16})
    for (const auto reduction : {Reduction::none, Reduction::mean})
      for (const double softcap : {0.0, 15.0}) {
        Head head({rows}, width, classes, torch::kFloat);
        head.input = head.input.detach().to(dtype).requires_grad_();
        EXPECT_LE(
            held(head, dtype, {.reduction = reduction, .label_smoothing = 0.1, .softcap = softcap}),
            bytes)
            << rows << " rows, width " << width << ", " << classes << " classes, " << dtype
            << ", softcap " << softcap;
      }
}

TEST(LinearCrossEntropy, HoldsATenthOfTheLogitsAtMost) {
  expect_held_at_most(0.1 * 700 * 4000 * 4, 700, 16, 4000);
  expect_held_at_most(0.1 * 700 * 9000 * 4, 700, 16, 9000);
}

TEST(LinearCrossEntropy, HoldsAMebibyteAtMostOfSmallHeads) {
  constexpr double kBytes = 1 << 20;
  expect_held_at_most(kBytes, 768, 128, 65);
  expect_held_at_most(kBytes, 4000, 128, 65);
  expect_held_at_most(kBytes, 100, 4096, 10);
  expect_held_at_most(kBytes, 1000, 16, 2000);
  expect_held_at_most(kBytes, 20'000, 1, 2);
}

// Of a million probabilities each sum of 256 is one number of the sum.
TEST(LinearCrossEntropy, OfAMillionClassesHasTheGradientsOfFp64) {
  torch::manual_seed(11);
  const int64_t classes = int64_t{1} << 20;
  const at::Tensor weight = torch::rand({classes, 16}), target = torch::randint(classes, {4});
  const auto gradient_in = [&](at::ScalarType dtype, auto loss_of) {
    torch::manual_seed(12);
    const at::Tensor input = torch::randn({4, 16}).to(dtype).requires_grad_();
    return torch::autograd::grad({loss_of(input, weight.to(dtype))}, {input})[0];
  };
  const at::Tensor truth = gradient_in(torch::kDouble, [&](const auto& x, const auto& w) {
    return torch::cross_entropy_loss(x.mm(w.t()), target);
  });
  const at::Tensor got = gradient_in(torch::kFloat, [&](const auto& x, const auto& w) {
    return linear_cross_entropy(x, w, target);
  });
  EXPECT_LT(((got.to(torch::kDouble) - truth).norm() / truth.norm()).item<double>(), 3e-6);
}

// Else it is made of many small products.
TEST(LinearCrossEntropy, TakesASmallHeadInOnePiece) {
  const Head head({12, 64}, 128, 65, torch::kFloat);
  const auto loss = [&](std::optional<int64_t> rows) {
    return gradients(
        linear_cross_entropy(head.input, head.weight, head.target, {.batch_chunk_size = rows}),
        head.leaves(false))[1];
  };
  EXPECT_TRUE(loss({}).equal(loss(768)));
  EXPECT_FALSE(loss({}).equal(loss(55))) << "sums in another order";
}

}  // namespace
}  // namespace demi
