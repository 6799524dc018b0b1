#include "demi/nn/loss_by_classes.h"

#include <gtest/gtest.h>

#include <limits>

#include "demi/nn/loss_testing.h"

namespace demi::nn {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

/// Blocks of 64 classes, and rows in two parts.
HeadAndTargets arranged(const Head& h, double smoothing, double softcap,
                        c10::ScalarType products = at::kFloat) {
  return {.input = h.input,
          .weight = h.weight,
          .bias = h.bias,
          .target = h.target,
          .counts = h.counts,
          .class_weight = h.class_weight,
          .smoothing = smoothing,
          .softcap = softcap,
          .products = products,
          .rows = 20};
}

TEST(LossByClasses, IsThatOfFp64) {
  for (const bool with_bias : {false, true})
    for (const bool with_weights : {false, true})
      for (const double smoothing : {0.0, 0.1})
        for (const double softcap : {0.0, 5.0})
          for (const auto dtype : {at::kFloat, at::kBFloat16}) {
            SCOPED_TRACE(c10::str("bias ", with_bias, " weights ", with_weights, " smoothing ",
                                  smoothing, " softcap ", softcap, " ", dtype));
            const Head h = head(with_bias, with_weights);
            const at::Tensor scale =
                (torch::rand({37}) + 0.5).masked_fill(h.counts.logical_not(), 0);
            const Truth truth = in_fp64(h, scale, smoothing, softcap);
            const LossPieces seen =
                loss_by_classes(arranged(h, smoothing, softcap, dtype), scale,
                                {.input = true, .weight = true, .bias = with_bias}, true);
            const double bound = dtype == at::kFloat ? 2e-6 : 2e-2;
            EXPECT_LT(error_of(seen.losses, truth.losses), bound);
            EXPECT_LT(error_of(seen.input, truth.input), bound);
            EXPECT_LT(error_of(seen.weight, truth.weight), bound);
            if (with_bias) {
              EXPECT_LT(error_of(seen.bias, truth.bias), bound);
            }
            at::Tensor z = h.input.mm(h.weight.t());
            if (with_bias) z = z + h.bias;
            if (dtype == at::kFloat) {
              EXPECT_TRUE(at::equal(seen.right, z.argmax(1).eq(h.target).logical_and(h.counts)));
            }
          }
}

TEST(LossByClasses, MakesOnlyWhatIsWanted) {
  const Head h = head(true, true);
  const at::Tensor scale = torch::rand({37}).masked_fill(h.counts.logical_not(), 0);
  const HeadAndTargets of = arranged(h, 0.1, 0);
  const LossPieces all =
      loss_by_classes(of, scale, {.input = true, .weight = true, .bias = true}, true);
  const LossPieces none = loss_by_classes(of, {}, {}, false);
  EXPECT_TRUE(at::equal(none.losses, all.losses));
  EXPECT_FALSE(none.input.defined() || none.weight.defined() || none.bias.defined() ||
               none.right.defined());
  EXPECT_TRUE(at::equal(loss_by_classes(of, scale, {.weight = true}, false).weight, all.weight));
  EXPECT_TRUE(at::equal(loss_by_classes(of, scale, {.bias = true}, false).bias, all.bias));
}

// What is masked is -Inf: a class that cannot be, alone or a whole block of them.
TEST(LossByClasses, KnowsInfinityNaNAndTies) {
  Head h{.input = torch::ones({5, 1}), .weight = torch::zeros({611, 1})};
  h.target = torch::tensor({0, 130, 500, 140, 610}, at::kLong);
  h.counts = torch::ones({5}, at::kBool);
  h.bias = torch::full({611}, -kInf);
  for (const int64_t largest : {130, 140, 500}) h.bias[largest] = 2;
  const LossPieces seen =
      loss_by_classes(arranged(h, 0, 0), torch::ones({5}), {.input = true, .weight = true}, true);
  EXPECT_EQ(seen.losses[0].item<float>(), kInf);
  EXPECT_NEAR(seen.losses[1].item<float>(), std::log(3.0), 1e-6);
  EXPECT_NEAR(seen.losses[2].item<float>(), std::log(3.0), 1e-6);
  EXPECT_TRUE(at::equal(seen.right, torch::tensor({false, true, false, false, false})))
      << "of the largest the first";
  h.counts[1] = false;
  const LossPieces uncounted = loss_by_classes(arranged(h, 0, 0), {}, {}, true);
  EXPECT_FALSE(uncounted.right.any().item<bool>());
  EXPECT_EQ(uncounted.losses[1].item<float>(), 0);
  h.counts[1] = true;
  h.bias.zero_();
  h.bias[500] = std::nan("");
  const LossPieces nan = loss_by_classes(arranged(h, 0, 0), {}, {}, true);
  EXPECT_TRUE(nan.losses.isnan().all().item<bool>());
  EXPECT_TRUE(at::equal(nan.right, torch::tensor({false, false, true, false, false})))
      << "NaN is the largest, as in argmax";
  h.bias.fill_(-kInf);
  EXPECT_TRUE(loss_by_classes(arranged(h, 0, 0), {}, {}, false).losses.isnan().all().item<bool>())
      << "as LibTorch's";
}

TEST(LossByClasses, IsForManyClassesOn16BitProductsOfAProcessor) {
  HeadAndTargets of{
      .input = torch::ones({64, 16}), .weight = torch::ones({4096, 16}), .products = at::kBFloat16};
  EXPECT_TRUE(is_faster_by_classes(of));
  of.products = at::kFloat;
  EXPECT_FALSE(is_faster_by_classes(of));
  of.products = at::kBFloat16;
  of.weight = torch::ones({4095, 16});
  EXPECT_FALSE(is_faster_by_classes(of));
  of.weight = torch::ones({4096, 16});
  of.input = torch::ones({63, 16});
  EXPECT_FALSE(is_faster_by_classes(of));
}

}  // namespace
}  // namespace demi::nn
