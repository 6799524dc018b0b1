// Graphs on a real GPU; skipped if there is none (device_graph_test.cpp covers the rest).
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "demi/core/error.h"
#include "demi/graph/device_graph.h"

namespace demi::graph {
namespace {

using ::testing::HasSubstr;

const c10::Device kDevice(c10::kCUDA, 0);

class GpuGraph : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string why = machine_graphs().obstacle(kDevice);
    if (!why.empty()) GTEST_SKIP() << why;
    guard_.emplace(c10::impl::VirtualGuardImpl(c10::kCUDA).getStreamFromGlobalPool(kDevice));
    at::manual_seed(3);
  }

  static std::unique_ptr<DeviceGraph> make(const DeviceGraph* beside = nullptr) {
    return machine_graphs().make(kDevice, beside);
  }
  template <class Work>
  static std::unique_ptr<DeviceGraph> record(const Work& work,
                                             const DeviceGraph* beside = nullptr) {
    auto graph = make(beside);
    graph->begin();
    work();
    graph->end();
    return graph;
  }
  // What a failed recording must leave: work, numbers from the generator, and another recording.
  static void expect_that_the_stream_works(const at::Tensor& ones) {
    EXPECT_EQ((ones + 1).sum().item<float>(), 2.F * static_cast<float>(ones.numel()));
    EXPECT_GT(torch::dropout(ones, 0.5, true).sum().item<float>(), 0);
    at::Tensor tripled;
    const auto graph = record([&] { tripled = ones * 3; });
    graph->replay();
    EXPECT_EQ(tripled.sum().item<float>(), 3.F * static_cast<float>(ones.numel()));
  }

 private:
  std::optional<c10::StreamGuard> guard_;
};

TEST_F(GpuGraph, ElementsOfNewInputs) {
  const at::Tensor x = torch::zeros({1000}, kDevice);
  at::Tensor y;
  const auto graph = record([&] { y = x * 2 + 1; });
  for (int i = 0; i < 3; ++i) {
    x.copy_(torch::randn({1000}));
    graph->replay();
    EXPECT_TRUE(y.equal(x * 2 + 1)) << i;
  }
}

TEST_F(GpuGraph, ABackwardPassWithNewInputs) {
  const at::Tensor x = torch::randn({32, 64}, kDevice);
  struct Network {
    at::Tensor in, out;
    at::Tensor loss(const at::Tensor& input) const {
      return torch::linear(torch::tanh(torch::linear(input, in)), out).pow(2).mean();
    }
    void forget_gradients() {
      for (at::Tensor* weight : {&in, &out}) weight->mutable_grad().reset();
    }
  };
  Network recorded{torch::randn({48, 64}, kDevice).requires_grad_(),
                   torch::randn({8, 48}, kDevice).requires_grad_()};
  Network eager{recorded.in.detach().clone().requires_grad_(),
                recorded.out.detach().clone().requires_grad_()};
  for (int i = 0; i < 3; ++i) {  // cuBLAS's handles and workspaces are made on the first call
    recorded.loss(x).backward();
    recorded.forget_gradients();
  }
  at::Tensor loss;
  const auto graph = record([&] {
    loss = recorded.loss(x);
    loss.backward();
  });
  for (int i = 0; i < 3; ++i) {
    x.copy_(torch::randn({32, 64}));
    graph->replay();
    eager.forget_gradients();
    const at::Tensor expected = eager.loss(x);
    expected.backward();
    EXPECT_TRUE(at::allclose(loss, expected, 1e-5, 1e-6)) << i;
    EXPECT_TRUE(at::allclose(recorded.in.grad(), eager.in.grad(), 1e-4, 1e-6)) << i;
    EXPECT_TRUE(at::allclose(recorded.out.grad(), eager.out.grad(), 1e-4, 1e-6)) << i;
  }
}

// Each replay goes on in the generator's sequence, as the same ops without a graph would.
TEST_F(GpuGraph, DropoutDrawsNewNumbers) {
  const at::Tensor x = torch::ones({10000}, kDevice);
  at::manual_seed(7);
  std::vector<at::Tensor> eager;
  for (int i = 0; i < 3; ++i) eager.push_back(torch::dropout(x, 0.5, true));
  ASSERT_FALSE(eager[0].equal(eager[1]));
  at::Tensor y;
  const auto graph = record([&] { y = torch::dropout(x, 0.5, true); });
  at::manual_seed(7);
  for (int i = 0; i < 3; ++i) {
    graph->replay();
    EXPECT_TRUE(y.equal(eager[i])) << i;
  }
}

TEST_F(GpuGraph, AFailedRecordingIsAbandoned) {
  const at::Tensor x = torch::ones({1000}, kDevice);
  x.sum().item<float>();
  const auto graph = make();
  graph->begin();
  EXPECT_THROW(torch::dropout(x * 2, 0.5, true).sum().item<float>(), c10::Error);
  graph->abandon();
  expect_that_the_stream_works(x);
  EXPECT_THROW(graph->replay(), UsageError);
}

TEST_F(GpuGraph, TheEndOfAFailedRecordingSaysSo) {
  const at::Tensor x = torch::ones({1000}, kDevice);
  x.sum().item<float>();
  const auto graph = make();
  graph->begin();
  EXPECT_THROW((x * 2).sum().item<float>(), c10::Error);
  try {
    graph->end();
    FAIL() << "it ended";
  } catch (const DeviceError& error) {
    EXPECT_THAT(error.what(), HasSubstr("CUDA error"));
  }
  expect_that_the_stream_works(x);
}

TEST_F(GpuGraph, OneThatGoesWhileItRecordsLeavesTheStreamUsable) {
  const at::Tensor x = torch::ones({1000}, kDevice);
  {
    const auto graph = make();
    graph->begin();
    x.add(1);
  }
  expect_that_the_stream_works(x);
}

TEST_F(GpuGraph, TheDefaultStreamIsRefused) {
  const at::Tensor x = torch::ones({1000}, kDevice);
  const auto graph = make();
  {
    const c10::StreamGuard by_default(
        c10::impl::VirtualGuardImpl(c10::kCUDA).getDefaultStream(kDevice));
    EXPECT_THROW(graph->begin(), DeviceError);
  }
  expect_that_the_stream_works(x);
}

// A block that the first graph's work has freed is where the second one's work begins.
TEST_F(GpuGraph, TwoGraphsShareMemory) {
  const at::Tensor x = torch::ones({1000}, kDevice);
  struct Recorded {
    std::unique_ptr<DeviceGraph> graph;
    void* wide = nullptr;
    at::Tensor sum;
  };
  const auto record_sum = [&](double factor, const DeviceGraph* beside) {
    Recorded recorded;
    recorded.graph = record(
        [&] {
          const at::Tensor wide = (x * factor).expand({4096, 1000}).contiguous();
          recorded.wide = wide.data_ptr();
          recorded.sum = wide.sum();
        },
        beside);
    return recorded;
  };
  const Recorded first = record_sum(1, nullptr), second = record_sum(2, first.graph.get()),
                 alone = record_sum(3, nullptr);
  EXPECT_EQ(first.wide, second.wide);
  EXPECT_NE(first.wide, alone.wide);
  for (const float value : {1.F, 0.5F}) {
    x.fill_(value);
    for (const Recorded* one : {&first, &second, &alone}) one->graph->replay();
    EXPECT_EQ(first.sum.item<float>(), 4096000 * value);
    EXPECT_EQ(second.sum.item<float>(), 2 * 4096000 * value);
    EXPECT_EQ(alone.sum.item<float>(), 3 * 4096000 * value);
  }
}

TEST_F(GpuGraph, AnotherThreadMayAskForMemoryMeanwhile) {
  const at::Tensor x = torch::ones({1000}, kDevice);
  at::Tensor y;
  const auto graph = record([&] {
    y = x + 1;
    std::thread([] { torch::empty({std::int64_t{1} << 28}, kDevice); }).join();
    y = y * 2;
  });
  graph->replay();
  EXPECT_EQ(y.sum().item<float>(), 4000);
}

TEST_F(GpuGraph, IsReplayedOnTheCurrentStream) {
  const at::Tensor x = torch::ones({1000}, kDevice);
  at::Tensor y;
  const auto graph = record([&] { y = x + 1; });
  const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  guard.synchronizeDevice(0);
  const c10::StreamGuard by_default(guard.getDefaultStream(kDevice));
  graph->replay();
  EXPECT_EQ(y.sum().item<float>(), 2000);
}

}  // namespace
}  // namespace demi::graph
