// Regions on a real GPU; skipped where there is none.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/torch.h>

#include "demi/autocast/autocast.h"
#include "demi/autocast/slow_dtype.h"
#include "demi/core/cuda_library.h"
#include "demi/weights/weights.h"

namespace demi {
namespace {

class GpuAutocast : public testing::Test {
 protected:
  void SetUp() override {
    const CudaLibrary& library = load_cuda();
    if (!library.loaded) GTEST_SKIP() << library.reason;
    if (!torch::cuda::is_available()) GTEST_SKIP() << "LibTorch finds no CUDA device";
    torch::manual_seed(1);
  }
};

std::vector<torch::Dtype> dtypes_in_hardware() {
  std::vector<torch::Dtype> dtypes;
  for (const auto dtype : {torch::kHalf, torch::kBFloat16})
    if (why_slow(torch::kCUDA, dtype).empty()) dtypes.push_back(dtype);
  return dtypes;
}

struct Run {
  at::Tensor output;
  std::vector<at::Tensor> gradients;
};

template <class Rnn>
Run run(Rnn& rnn, const at::Tensor& x) {
  rnn->zero_grad();
  auto output = std::get<0>(rnn->forward(x));
  output.to(torch::kFloat).pow(2).sum().backward();
  Run result{output.detach().to(torch::kFloat), {}};
  for (const auto& p : rnn->parameters()) result.gradients.push_back(p.grad().to(torch::kFloat));
  return result;
}

// The module cast by hand lays out its own buffer of 16-bit weights.
template <class Rnn, class Options>
void expect_as_cast_by_hand(const Options& options, torch::Dtype dtype) {
  Rnn rnn(options);
  rnn->to(torch::kCUDA);
  const auto x = torch::randn({7, 5, 12}, torch::kCUDA);
  Run ours;
  {
    const Autocast region(torch::kCUDA, dtype);
    weights::reset_stats();
    ours = run(rnn, x);
    EXPECT_LE(weights::stats().casts, static_cast<std::int64_t>(rnn->parameters().size()));
  }
  EXPECT_EQ(rnn->parameters()[0].grad().scalar_type(), torch::kFloat);
  rnn->to(dtype);
  const Run theirs = run(rnn, x.to(dtype));
  EXPECT_TRUE(torch::allclose(ours.output, theirs.output, 1e-2, 1e-2));
  ASSERT_EQ(ours.gradients.size(), theirs.gradients.size());
  for (std::size_t i = 0; i < ours.gradients.size(); ++i)
    EXPECT_TRUE(torch::allclose(ours.gradients[i], theirs.gradients[i], 5e-2, 5e-2)) << i;
}

TEST_F(GpuAutocast, RecurrentLayersRunAsThoseCastByHand) {
  for (const auto dtype : dtypes_in_hardware())
    for (const int layers : {1, 2})
      for (const bool both : {false, true})
        for (const bool bias : {true, false}) {
          SCOPED_TRACE(std::string(c10::toString(dtype)) + " " + std::to_string(layers) +
                       (both ? " both directions" : "") + (bias ? "" : " without biases"));
          expect_as_cast_by_hand<torch::nn::LSTM>(
              torch::nn::LSTMOptions(12, 16).num_layers(layers).bidirectional(both).bias(bias),
              dtype);
          expect_as_cast_by_hand<torch::nn::GRU>(
              torch::nn::GRUOptions(12, 16).num_layers(layers).bidirectional(both).bias(bias),
              dtype);
        }
}

struct LooksInBackward : torch::autograd::Function<LooksInBackward> {
  static inline torch::Dtype product;
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    const auto x = torch::ones({8, 8}, torch::kCUDA);
    product = torch::mm(x, x).scalar_type();
    return {gradients[0]};
  }
};

TEST_F(GpuAutocast, TheDevicesThreadRunsUnderTheRegionsPolicy) {
  OpPolicy policy;
  policy.set("mm", OpCategory::fp32);
  const auto backward = [](const AutocastOptions& options) {
    const Autocast region(torch::kCUDA, options);
    LooksInBackward::apply(torch::ones({4}, torch::kCUDA).requires_grad_()).sum().backward();
    return LooksInBackward::product;
  };
  EXPECT_EQ(backward({.dtype = torch::kHalf, .policy = policy}), torch::kFloat);
  EXPECT_EQ(backward({.dtype = torch::kHalf}), torch::kHalf);
}

TEST_F(GpuAutocast, BinaryCrossEntropyIsRefused) {
  const Autocast region(torch::kCUDA, torch::kHalf);
  const auto p = torch::rand({4}, torch::kCUDA);
  EXPECT_ANY_THROW(torch::binary_cross_entropy(p, torch::ones_like(p)));
  EXPECT_EQ(torch::binary_cross_entropy_with_logits(p.to(torch::kHalf), torch::ones_like(p))
                .scalar_type(),
            torch::kFloat);
}

}  // namespace
}  // namespace demi
