// Steps and the low precision copies of what they step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <thread>

#include "demi/optim/kinds_testing.h"
#include "demi/optim/sgd.h"
#include "demi/optim/testing.h"
#include "demi/step/emulated_device_testing.h"
#include "demi/weights/weights.h"

namespace demi::optim {
namespace {

using namespace testing;
using ::testing::HasSubstr;

class StepAndCopies : public ::testing::Test {
 protected:
  void SetUp() override { weights::set_mode(weights::Mode::keep); }
  void TearDown() override {
    weights::set_capacity();
    weights::set_mode(before_);
  }

 private:
  weights::Mode before_ = weights::mode();
};

void expect_right(const at::Tensor& p, const std::string& what) {
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    EXPECT_TRUE(at::equal(weights::low_precision(p, dtype).detach(), p.detach().to(dtype))) << what;
}

TEST_F(StepAndCopies, CopiesDroppedBesideStepsAreOnlyCastAgain) {
  const at::Tensor p = parameter({400, 401}), q = parameter({3});
  const auto optimizer = make(KindId::kSgd, {p, q});
  std::atomic<bool> stop = false;
  std::thread dropper([&] {
    while (!stop) {
      weights::drop();
      std::this_thread::yield();
    }
  });
  for (int step = 0; step < 40; ++step) {
    expect_right(p, "p");
    expect_right(q, "q");
    for (const auto& x : {p, q}) set_grad(x, gradient(x, at::kBFloat16, step));
    optimizer->step();
  }
  stop = true;
  dropper.join();
  expect_right(p, "p");
}

TEST_F(StepAndCopies, TwoParametersInTheSameMemoryAreRefused) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const at::Tensor flat = parameter({64}).detach().to(dtype);
    const auto leaf = [&](int64_t begin, int64_t length) {
      return flat.narrow(0, begin, length).detach().requires_grad_();
    };
    EXPECT_THAT(complaint([&] {
                  SGD({leaf(0, 8), leaf(0, 8)}, SGDOptions(1));
                }),
                HasSubstr("same memory"));
    EXPECT_THAT(complaint([&] {
                  SGD({leaf(0, 8), leaf(8, 8), leaf(15, 2)}, SGDOptions(1));
                }),
                HasSubstr("same memory"));
    SGD apart({leaf(0, 8), leaf(8, 8)}, SGDOptions(1));
    EXPECT_THAT(
        complaint([&] { apart.add_param_group(torch::optim::OptimizerParamGroup({leaf(4, 2)})); }),
        HasSubstr("same memory"));
    EXPECT_EQ(apart.param_groups().size(), 1);
  }
}

TEST_F(StepAndCopies, ParametersThatAreTiedLaterAreRefusedAtTheStep) {
  at::Tensor a = parameter({8}), b = parameter({8}, at::kFloat, 2);
  SGD sgd({a, b}, SGDOptions(0.5), {.path = kernels::Path::reference});
  const auto step = [&] {
    for (const auto& x : {a, b}) set_grad(x, torch::ones(8));
    sgd.step();
  };
  step();
  b.set_data(a.data());
  const at::Tensor before = a.detach().clone();
  EXPECT_THAT(complaint(step), HasSubstr("same memory"));
  EXPECT_TRUE(at::equal(a.detach(), before)) << "nothing was written";
  b.set_data(torch::zeros(8));
  step();
  EXPECT_TRUE(at::equal(b.detach(), torch::full({8}, -0.5)));
}

TEST_F(StepAndCopies, OneMemoryInTwoOptimizersLeavesNoStaleCopy) {
  at::Tensor a = parameter({8}), b = parameter({8});
  b.set_data(a.data());
  SGD first({a}, SGDOptions(0.5)), second({b}, SGDOptions(0.25));
  for (int step = 0; step < 4; ++step) {
    expect_right(a, "a");
    expect_right(b, "b");
    for (const auto& x : {a, b}) set_grad(x, gradient(x, at::kBFloat16, step));
    first.step();
    expect_right(b, "b after the step on a");
    if (step % 2) expect_right(a, "a");
    second.step();
    expect_right(a, "a after the step on b");
  }
}

// A replay runs no host code: what it writes has to be where the next use looks.
TEST_F(StepAndCopies, AreRightAfterEveryReplayWhateverHappensBetween) {
  const std::vector<std::pair<std::string, std::function<void(const at::Tensor&)>>> works{
      {"nothing", [](const at::Tensor&) {}},
      {"swapped for an average and back",
       [](const at::Tensor& p) {
         const at::Tensor kept = p.detach().clone();
         p.data().fill_(3);
         expect_right(p, "average");
         p.data().copy_(kept);
       }},
      {"dropped", [](const at::Tensor&) { weights::drop(); }},
      {"dropped and used",
       [](const at::Tensor& p) {
         weights::drop();
         expect_right(p, "dropped");
       }},
      {"written", [](const at::Tensor& p) { p.data().mul_(0.5); }},
  };
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    EmulatedDevice device;
    const at::Tensor p = parameter({300});
    const auto optimizer = kind.make({p}, {}, device);
    const at::Tensor fixed = gradient(p, at::kBFloat16, 1);
    const auto step = [&] {
      set_grad(p, fixed);
      optimizer->step();
    };
    weights::low_precision(p, at::kBFloat16);
    step();
    device.begin_capture();
    step();
    const EmulatedDevice::Graph graph = device.end_capture();
    const StepResult result = optimizer->last_step();  // the graph writes it
    for (const auto& [name, work] : works) {
      EmulatedDevice::replay(graph);
      expect_right(p, name);
      work(p);
      EmulatedDevice::replay(graph);
      expect_right(p, name);
    }
    fixed.fill_(kInf);  // skipped
    p.data().add_(1);
    EmulatedDevice::replay(graph);
    expect_right(p, "skipped");
    EXPECT_TRUE(result.skipped());
  }
}

}  // namespace
}  // namespace demi::optim
