// Losses and gradients of logits by the CUDA kernel's own source, compiled for the host.
#include "demi/nn/loss_pieces.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "demi/kernels/testing/emulation.h"
#include "demi/nn/loss_testing.h"

namespace demi::nn {
namespace {

constexpr kernels::CudaKernels kEmulated{
    .layout = kernels::kStepLayout,
    .cross_entropy = [](const kernels::CrossEntropyRows& rows, void*) -> const char* {
      kernels::cuda::run_rows(rows);
      return nullptr;
    }};

HeadAndTargets arranged(const Head& h, double smoothing, double softcap, c10::ScalarType products,
                        int64_t rows) {
  return {.input = h.input,
          .weight = h.weight,
          .bias = h.bias,
          .target = h.target,
          .counts = h.counts,
          .class_weight = h.class_weight,
          .smoothing = smoothing,
          .softcap = softcap,
          .products = products,
          .rows = rows,
          .kernels = &kEmulated};
}

TEST(LossPieces, OfAKernelAreThoseOfFp64) {
  for (const bool with_bias : {false, true})
    for (const bool with_weights : {false, true})
      for (const double smoothing : {0.0, 0.1})
        for (const double softcap : {0.0, 5.0})
          for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
            SCOPED_TRACE(c10::str("bias ", with_bias, " weights ", with_weights, " smoothing ",
                                  smoothing, " softcap ", softcap, " ", dtype));
            const Head h = head(with_bias, with_weights);
            const HeadAndTargets of = arranged(h, smoothing, softcap, dtype, 10);
            // Gradients far under the least number of fp16: without a factor all would be 0.
            const at::Tensor scale =
                1e-9 * (torch::rand({37}) + 0.5).masked_fill(h.counts.logical_not(), 0);
            const Truth truth = in_fp64(h, scale, smoothing, softcap);
            const LossPieces seen =
                loss_pieces(of, scale, {.input = true, .weight = true, .bias = with_bias}, true);
            // Products in 16 bits: operands of 8 or 11 bits, sums of 24 terms.
            const double bound = dtype == at::kFloat ? 2e-6 : dtype == at::kHalf ? 2.5e-3 : 2e-2;
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

// Beside 1 and 611 others, of which fp16 holds none with these scales.
TEST(LossPieces, OfFp16HaveGradientsUnderItsLeastNumber) {
  const Head h = head(true, false);
  at::Tensor scale = 1e-9 * torch::rand({37}).masked_fill(h.counts.logical_not(), 0);
  const Truth truth = in_fp64(h, scale, 0, 0);
  for (const auto* with : {&kEmulated, static_cast<const kernels::CudaKernels*>(nullptr)}) {
    HeadAndTargets of = arranged(h, 0, 0, at::kHalf, 10);
    of.kernels = with;
    const LossPieces seen = loss_pieces(of, scale, {.input = true, .weight = true, .bias = true});
    EXPECT_LT(error_of(seen.input, truth.input), 2.5e-3);
    EXPECT_LT(error_of(seen.weight, truth.weight), 2.5e-3);
    EXPECT_LT(error_of(seen.bias, truth.bias), 2.5e-3);
    at::Tensor spoiled = scale.clone();
    spoiled[0] = std::numeric_limits<float>::infinity();
    const LossPieces other = loss_pieces(of, spoiled, {.input = true});
    EXPECT_FALSE(other.input[0].isfinite().any().item<bool>());
    EXPECT_LT(error_of(other.input.narrow(0, 1, 36), truth.input.narrow(0, 1, 36)), 2.5e-3);
  }
}

// Nothing is read beside the row, and the rows around it are as without.
TEST(LossPieces, OfAKernelAreNaNOfATargetThatIsNoClass) {
  for (const int64_t classes : {13, 8203}) {
    const at::Tensor all = torch::randn({6, classes}), logits = all.narrow(0, 1, 4),
                     target = torch::tensor({int64_t{-1}, int64_t{2}, classes, int64_t{1} << 40}),
                     ones = torch::ones({4}), losses = torch::empty({4});
    const at::Tensor z = logits[1].to(at::kDouble).requires_grad_();
    const at::Tensor truth = at::cross_entropy_loss(z, target[1]);
    truth.backward();
    const at::Tensor around = all.clone(), right = torch::ones({4}, at::kBool);
    kernels::cuda::run_rows({.logits = logits.mutable_data_ptr(),
                             .storage = kernels::Storage::fp32,
                             .target = target.const_data_ptr<int64_t>(),
                             .row_weight = ones.const_data_ptr<float>(),
                             .row_scale = ones.const_data_ptr<float>(),
                             .losses = losses.mutable_data_ptr<float>(),
                             .right = right.mutable_data_ptr<bool>(),
                             .rows = 4,
                             .classes = classes,
                             .columns = classes,
                             .wants_gradient = true});
    for (const int64_t row : {0, 2, 3}) {
      EXPECT_TRUE(losses[row].isnan().item<bool>()) << row;
      EXPECT_TRUE(logits[row].isnan().all().item<bool>()) << row;
      EXPECT_FALSE(right[row].item<bool>()) << row;
    }
    EXPECT_NEAR(losses[1].item<double>(), truth.item<double>(), 1e-5);
    EXPECT_LT(error_of(logits[1], z.grad()), 1e-5);
    EXPECT_TRUE(torch::equal(all[0], around[0]) && torch::equal(all[5], around[5]));
  }
}

// A row that takes more threads, in 16 bits beside columns that are no class.
TEST(LossPieces, OfAKernelAreThoseOfFp64OfManyClasses) {
  for (const int64_t classes : {8193, 10007}) {
    const Head h = head(true, true, classes);
    const at::Tensor scale = torch::rand({37}).masked_fill(h.counts.logical_not(), 0);
    const Truth truth = in_fp64(h, scale, 0.1, 5);
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      const LossPieces seen = loss_pieces(arranged(h, 0.1, 5, dtype, 20), scale,
                                          {.input = true, .weight = true, .bias = true});
      const double bound = dtype == at::kFloat ? 4e-6 : 2e-2;
      EXPECT_EQ(seen.weight.sizes(), h.weight.sizes());
      EXPECT_LT(error_of(seen.losses, truth.losses), bound);
      EXPECT_LT(error_of(seen.input, truth.input), bound);
      EXPECT_LT(error_of(seen.weight, truth.weight), bound);
      EXPECT_LT(error_of(seen.bias, truth.bias), bound);
    }
  }
}

// Whatever stands in the columns that are no class, such as what NaN times 0 leaves there.
TEST(LossPieces, OfAKernelPassOverColumnsThatAreNoClass) {
  for (const int64_t classes : {13, 8203}) {
    const at::Tensor logits = torch::randn({3, classes + 5});
    logits.narrow(1, classes, 5).fill_(std::nanf(""));
    const at::Tensor z = logits.narrow(1, 0, classes).to(at::kDouble).requires_grad_(),
                     target = torch::tensor({0, 12, 5}, at::kLong), ones = torch::ones({3});
    const at::Tensor truth = at::cross_entropy_loss(z, target, /*weight=*/{}, at::Reduction::None);
    truth.sum().backward();
    const at::Tensor losses = torch::empty({3});
    kernels::cuda::run_rows({.logits = logits.mutable_data_ptr(),
                             .storage = kernels::Storage::fp32,
                             .target = target.const_data_ptr<int64_t>(),
                             .row_weight = ones.const_data_ptr<float>(),
                             .row_scale = ones.const_data_ptr<float>(),
                             .losses = losses.mutable_data_ptr<float>(),
                             .rows = 3,
                             .classes = classes,
                             .columns = classes + 5,
                             .wants_gradient = true});
    EXPECT_LT(error_of(losses, truth.detach()), 1e-6);
    EXPECT_LT(error_of(logits.narrow(1, 0, classes), z.grad()), 1e-5);
    EXPECT_EQ(logits.narrow(1, classes, 5).abs().max().item<float>(), 0);
  }
}

TEST(LossPieces, OfAKernelWithoutGradientsAreTheSameLosses) {
  const Head h = head(true, true);
  const HeadAndTargets of = arranged(h, 0.1, 0, at::kFloat, 37);
  const at::Tensor scale = torch::ones({37});
  const LossPieces with = loss_pieces(of, scale, {.input = true}),
                   without = loss_pieces(of, {}, {});
  EXPECT_TRUE(at::equal(with.losses, without.losses));
  EXPECT_FALSE(without.input.defined());
}

TEST(LossPieces, OfAKernelWithoutRowsAreNone) {
  Head h = head(false, false);
  for (at::Tensor* one : {&h.input, &h.target, &h.counts}) *one = one->narrow(0, 0, 0);
  for (const auto dtype : {at::kFloat, at::kHalf}) {
    const LossPieces seen = loss_pieces(arranged(h, 0, 0, dtype, 10), torch::ones({0}),
                                        {.input = true, .weight = true});
    EXPECT_EQ(seen.losses.numel(), 0);
    EXPECT_EQ(seen.weight.abs().sum().item<float>(), 0);
  }
}

// What is masked is -Inf: a class that cannot be, alone or for a whole thread.
TEST(LossPieces, OfAKernelKnowInfinityAndTies) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  Head h{.input = torch::ones({4, 1}), .weight = torch::zeros({611, 1})};
  h.target = torch::tensor({0, 5, 7, 3}, at::kLong);
  h.counts = torch::ones({4}, at::kBool);
  h.bias = torch::full({611}, -kInf);
  h.bias[5] = 2;
  h.bias[7] = 2;
  const LossPieces seen =
      loss_pieces(arranged(h, 0, 0, at::kFloat, 3), torch::ones({4}), {.input = true}, true);
  EXPECT_EQ(seen.losses[0].item<float>(), kInf);
  EXPECT_NEAR(seen.losses[1].item<float>(), std::log(2.0), 1e-6);
  EXPECT_NEAR(seen.losses[2].item<float>(), std::log(2.0), 1e-6);
  EXPECT_TRUE(at::equal(seen.right, torch::tensor({false, true, false, false})));
  h.counts[1] = false;
  const LossPieces uncounted = loss_pieces(arranged(h, 0, 0, at::kFloat, 4), {}, {}, true);
  EXPECT_FALSE(uncounted.right.any().item<bool>());
  EXPECT_EQ(uncounted.losses[1].item<float>(), 0);
  h.counts[1] = true;
  h.bias.fill_(-kInf);
  const LossPieces none = loss_pieces(arranged(h, 0, 0, at::kFloat, 4), {}, {});
  EXPECT_TRUE(none.losses.isnan().all().item<bool>());
  h.bias.zero_();
  h.bias[9] = std::nanf("");
  const LossPieces spoiled = loss_pieces(arranged(h, 0, 0, at::kFloat, 4), {}, {});
  EXPECT_TRUE(spoiled.losses.isnan().all().item<bool>());
}

}  // namespace
}  // namespace demi::nn
