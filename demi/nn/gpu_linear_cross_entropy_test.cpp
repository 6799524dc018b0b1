// linear_cross_entropy on a real GPU; skipped where there is none.
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/torch.h>

#include "demi/autocast/autocast.h"
#include "demi/core/cuda_library.h"
#include "demi/nn/linear_cross_entropy.h"

namespace demi {
namespace {

class GpuLinearCrossEntropy : public ::testing::Test {
 protected:
  void SetUp() override {
    const CudaLibrary& library = load_cuda();
    if (!library.loaded) GTEST_SKIP() << library.reason;
    if (!torch::cuda::is_available()) GTEST_SKIP() << "LibTorch finds no CUDA device";
  }
};

double relative_error(const at::Tensor& seen, const at::Tensor& truth) {
  return ((seen.cpu().to(at::kDouble) - truth).norm() / truth.norm()).item<double>();
}

// Against LibTorch in FP64 on the CPU. 3,000 targets: gradients of logits are under fp16's least
// number without a factor of their own.
TEST_F(GpuLinearCrossEntropy, IsThatOfFp64) {
  torch::manual_seed(2);
  const at::Tensor input = torch::randn({3000, 64}), weight = torch::randn({1013, 64}) * 0.3,
                   bias = torch::randn({1013}), class_weight = torch::rand({1013}) + 0.5;
  const at::Tensor target = torch::randint(1013, {3000});
  target.narrow(0, 0, 100).fill_(-100);
  const auto wide = [](const at::Tensor& t) { return t.to(at::kDouble).requires_grad_(); };
  for (const double smoothing : {0.0, 0.1}) {
    const at::Tensor x = wide(input), w = wide(weight), b = wide(bias);
    const at::Tensor truth =
        at::cross_entropy_loss(x.mm(w.t()) + b, target, class_weight.to(at::kDouble),
                               at::Reduction::Mean, -100, smoothing);
    truth.backward();
    for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16})
      for (const std::optional<int64_t> rows : {std::optional<int64_t>(), {700}}) {
        SCOPED_TRACE(c10::str(dtype, " smoothing ", smoothing, " rows ", rows.value_or(0)));
        const auto there = [](const at::Tensor& t) { return t.cuda().requires_grad_(); };
        const at::Tensor xs = there(input), ws = there(weight), bs = there(bias);
        at::Tensor loss;
        {
          const Autocast region(torch::kCUDA, {.dtype = dtype == at::kFloat ? at::kHalf : dtype,
                                               .enabled = dtype != at::kFloat});
          loss = linear_cross_entropy(xs, ws, target.cuda(),
                                      {.linear_bias = bs,
                                       .weight = class_weight.cuda(),
                                       .label_smoothing = smoothing,
                                       .batch_chunk_size = rows});
        }
        loss.backward();
        const double step = dtype == at::kFloat ? 1e-6 : dtype == at::kHalf ? 0x1p-10 : 0x1p-7;
        EXPECT_EQ(loss.scalar_type(), at::kFloat);
        EXPECT_NEAR(loss.item<double>(), truth.item<double>(), 8 * step * truth.item<double>());
        EXPECT_LT(relative_error(xs.grad(), x.grad()), 8 * step);
        EXPECT_LT(relative_error(ws.grad(), w.grad()), 8 * step);
        EXPECT_LT(relative_error(bs.grad(), b.grad()), 8 * step);
      }
  }
}

// Reduction::none makes its gradients in backward: in fp16 with a factor of their own, too.
TEST_F(GpuLinearCrossEntropy, EachLossHasItsGradients) {
  torch::manual_seed(3);
  const at::Tensor input = torch::randn({300, 64}), weight = torch::randn({1013, 64}) * 0.3,
                   target = torch::randint(1013, {300}), share = torch::rand({300}) * 1e-8;
  const at::Tensor x = input.to(at::kDouble).requires_grad_(),
                   w = weight.to(at::kDouble).requires_grad_();
  (at::cross_entropy_loss(x.mm(w.t()), target, {}, at::Reduction::None) * share).sum().backward();
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    const at::Tensor xs = input.cuda().requires_grad_(), ws = weight.cuda().requires_grad_();
    at::Tensor losses;
    {
      const Autocast region(torch::kCUDA, dtype);
      losses = linear_cross_entropy(xs, ws, target.cuda(), {.reduction = Reduction::none});
    }
    (losses * share.cuda()).sum().backward();
    const double bound = dtype == at::kHalf ? 0x1p-7 : 0x1p-4;
    EXPECT_LT(relative_error(xs.grad(), x.grad()), bound);
    EXPECT_LT(relative_error(ws.grad(), w.grad()), bound);
  }
}

TEST_F(GpuLinearCrossEntropy, OfATargetThatIsNoClassIsNaN) {
  const auto options = torch::TensorOptions(torch::kCUDA).requires_grad(true);
  const at::Tensor x = torch::randn({4, 64}, options), w = torch::randn({1013, 64}, options);
  const at::Tensor target = torch::tensor({5, -1, 1013, 7}, torch::kLong).cuda();
  const at::Tensor losses = linear_cross_entropy(x, w, target, {.reduction = Reduction::none});
  losses.sum().backward();
  const at::Tensor wrong = torch::tensor({false, true, true, false});
  EXPECT_TRUE(torch::equal(losses.isnan().cpu(), wrong));
  EXPECT_TRUE(torch::equal(x.grad().isnan().any(1).cpu(), wrong));
}

}  // namespace
}  // namespace demi
