// The arguments of cuDNN's RNN in a region, seen by kernels of this test that replace it on a CPU.
#include <gtest/gtest.h>
#include <torch/library.h>
#include <torch/torch.h>

#include "demi/autocast/autocast.h"
#include "demi/weights/weights.h"

namespace demi {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using Optional = std::optional<Tensor>;

struct Received {
  Tensor input, hx, cx, buffer;
  Tensors weights;
  int flattened = 0;
} received;

// Makes one buffer of the weights' dtype, as cuDNN does, and points the given weights into it.
Tensor cudnn_flatten(at::TensorList weights, int64_t, c10::SymInt, int64_t, c10::SymInt,
                     c10::SymInt, int64_t, bool, bool) {
  ++received.flattened;
  Tensors parts;
  for (const auto& one : weights) parts.push_back(one.reshape(-1));
  Tensor buffer = at::cat(parts);
  int64_t begin = 0;
  for (const auto& one : weights) {
    one.set_data(buffer.narrow(0, begin, one.numel()).view(one.sizes()));
    begin += one.numel();
  }
  return buffer;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> cudnn_forward(
    const Tensor& input, at::TensorList weights, int64_t, const Optional& buffer, const Tensor& hx,
    const Optional& cx, int64_t, c10::SymInt, c10::SymInt, int64_t, bool, double, bool, bool,
    c10::SymIntArrayRef, const Optional&) {
  received.input = input;
  received.weights = weights.vec();
  received.buffer = buffer.value_or(Tensor());
  received.hx = hx;
  received.cx = cx.value_or(Tensor());
  return {input.clone(), hx.clone(), cx ? cx->clone() : at::empty({0}), at::empty({0}),
          received.buffer.defined() ? received.buffer.clone() : at::empty({0})};
}

std::tuple<Tensor, Tensor, Tensor, Tensors> cudnn_backward(
    const Tensor& input, at::TensorList weights, int64_t, const Tensor&, const Tensor& hx,
    const Optional& cx, const Tensor&, const Optional&, const Optional&, const Optional&, int64_t,
    c10::SymInt, c10::SymInt, int64_t, bool, double, bool, bool, c10::SymIntArrayRef,
    const Optional&, const Tensor&, std::array<bool, 4>) {
  Tensors gradients;
  for (const auto& one : weights) gradients.push_back(at::ones_like(one));
  return {at::zeros_like(input), at::zeros_like(hx), cx ? at::zeros_like(*cx) : Tensor(),
          gradients};
}

constexpr int64_t kInput = 3, kHidden = 4;

struct Lstm {
  Tensors weights;
  Tensor buffer, x = torch::randn({5, 2, kInput}), h = torch::zeros({1, 2, kHidden}),
                 c = torch::zeros({1, 2, kHidden});

  explicit Lstm(bool bias = true) {
    weights = {torch::randn({4 * kHidden, kInput}), torch::randn({4 * kHidden, kHidden})};
    if (bias) weights.insert(weights.end(), {torch::randn({16}), torch::randn({16})});
    for (auto& one : weights) one.requires_grad_();
  }
  Tensor operator()() const {
    return std::get<0>(at::_cudnn_rnn(x, weights, static_cast<int64_t>(weights.size()), buffer, h,
                                      c, /*mode=*/2, kHidden, 0, 1, false, 0.0, true, false, {},
                                      {}));
  }
};

class CudnnRnn : public testing::TestWithParam<torch::Dtype> {
 protected:
  CudnnRnn() {
    received = {};
    policy_.set("_cudnn_rnn", OpCategory::lower_precision);
  }
  Autocast region() const {
    return Autocast(torch::kCPU, AutocastOptions{.dtype = GetParam(), .policy = policy_});
  }
  OpPolicy policy_;
};

TEST_P(CudnnRnn, GetsWeightsCastOnceInABufferThatWasLaidOutForTheirDtype) {
  for (const bool bias : {true, false}) {
    const Lstm lstm(bias);
    const auto in_region = region();
    weights::reset_stats();
    const Tensor output = lstm();
    EXPECT_EQ(output.scalar_type(), GetParam());
    for (const auto* one : {&received.input, &received.hx, &received.cx, &received.buffer})
      EXPECT_EQ(one->scalar_type(), GetParam());
    Tensors expected;
    for (std::size_t i = 0; i < lstm.weights.size(); ++i) {
      expected.push_back(lstm.weights[i].detach().to(GetParam()).reshape(-1));
      EXPECT_TRUE(received.weights[i].detach().reshape(-1).equal(expected.back())) << i;
      EXPECT_FALSE(received.weights[i].is_alias_of(received.buffer)) << "the kept copy was moved";
    }
    EXPECT_TRUE(received.buffer.equal(at::cat(expected)));
    lstm();
    EXPECT_EQ(weights::stats().casts, static_cast<std::int64_t>(lstm.weights.size()));
  }
}

TEST_P(CudnnRnn, SendsGradientsToTheFp32Weights) {
  const Lstm lstm;
  const Tensor output = [&] {
    const auto in_region = region();
    return lstm();
  }();
  output.sum().backward();
  for (const auto& one : lstm.weights) {
    ASSERT_TRUE(one.grad().defined());
    EXPECT_TRUE(one.grad().equal(at::ones_like(one)));
  }
}

TEST_P(CudnnRnn, IsGivenTheBufferThatIsThereWhereNoWeightIsCast) {
  Lstm lstm;
  for (auto& one : lstm.weights) one = one.detach().to(GetParam());
  lstm.buffer = cudnn_flatten(lstm.weights, 4, kInput, 2, kHidden, 0, 1, false, false);
  received.flattened = 0;
  const auto in_region = region();
  lstm();
  EXPECT_EQ(received.flattened, 0);
  EXPECT_TRUE(received.buffer.is_same(lstm.buffer));
  EXPECT_EQ(received.input.scalar_type(), GetParam());
}

TEST_P(CudnnRnn, HasItLaidOutAnewWhereSomeWeightsAreCast) {
  Lstm lstm;
  lstm.buffer = torch::zeros({1});
  for (const int given : {2, 3}) lstm.weights[given] = lstm.weights[given].detach().to(GetParam());
  const auto in_region = region();
  lstm();
  EXPECT_EQ(received.flattened, 1);
  EXPECT_EQ(received.buffer.scalar_type(), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CudnnRnn, testing::Values(torch::kHalf, torch::kBFloat16));

}  // namespace

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("_cudnn_rnn_flatten_weight", TORCH_FN(cudnn_flatten));
  library.impl("_cudnn_rnn", TORCH_FN(cudnn_forward));
  library.impl("_cudnn_rnn_backward", TORCH_FN(cudnn_backward));
}

}  // namespace demi
