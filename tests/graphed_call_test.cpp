// A call that is recorded in a graph gives results in memory of their own, wherever it is made, and
// shares the memory of a Step's graphs. On the device of recorded_graph.h.
#include "demi/loop/graphed_call.h"

#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "demi/autocast/autocast.h"
#include "demi/core/error.h"
#include "tests/graphed_training.h"

namespace {

using namespace graphed_training;  // NOLINT(google-build-using-namespace)
using demi::loop::GraphedCall;

/// Notes which graphs are made beside another.
class Watched : public demi::graph::GraphSource {
 public:
  std::string obstacle(c10::Device device) const override { return graphs_.obstacle(device); }
  std::unique_ptr<demi::graph::DeviceGraph> make(
      c10::Device device, const demi::graph::DeviceGraph* beside) const override {
    (beside ? shared : alone)++;
    return graphs_.make(device, beside);
  }
  mutable int shared = 0, alone = 0;

 private:
  second_device::Graphs graphs_;
};

TEST(GraphedCalls, ResultsAreInMemoryOfTheirOwn) {
  MachineGraphs graphs;
  Training training({}, GraphMode::off);
  GraphedCall call({&*training.net},
                   [&](const Tensors& in) {
                     const demi::Autocast region(kDevice.type(), at::kBFloat16);
                     return Tensors{training.net->forward(in[0]), {}, in[1] + 1};
                   },
                   {.device = kDevice, .graph = GraphMode::on});
  training.net->eval();
  std::vector<Tensors> seen;
  const auto x = [](int i) { return Tensors{Training::inputs(i)[0], Training::targets(i)[0]}; };
  for (int i = 0; i < 12; ++i) seen.push_back(call(x(i)));
  EXPECT_EQ(call.counts().replays, 9);
  for (int i = 0; i < 12; ++i) {
    const Tensors& one = seen[std::size_t(i)];
    const Tensors plain = call.plainly(x(i));
    ASSERT_EQ(one.size(), 3U);
    EXPECT_TRUE(at::equal(one[0].cpu(), plain[0].cpu())) << i;
    EXPECT_FALSE(one[0].requires_grad());
    EXPECT_FALSE(one[1].defined());
    EXPECT_TRUE(at::equal(one[2].cpu(), Training::targets(i)[0].cpu() + 1)) << i;
  }
}

// The caller's region, inference mode and gradients are no part of a call.
TEST(GraphedCalls, ArePlacedAnywhere) {
  MachineGraphs graphs;
  Training training({}, GraphMode::off);
  training.net->eval();
  GraphedCall call({&*training.net},
                   [&](const Tensors& in) { return Tensors{training.net->forward(in[0])}; },
                   {.device = kDevice, .graph = GraphMode::on});
  const at::Tensor right = call.plainly(Training::inputs(0)).front().cpu();
  EXPECT_EQ(right.scalar_type(), at::kFloat);
  for (int i = 0; i < 12; ++i) {
    const demi::Autocast region(kDevice.type(), {.dtype = at::kBFloat16, .enabled = i % 2 == 0});
    const c10::InferenceMode mode(i % 3 == 0);
    const at::Tensor seen = call(Training::inputs(0)).front();
    EXPECT_TRUE(at::equal(seen.cpu(), right)) << i;
    EXPECT_FALSE(seen.is_inference());
  }
  EXPECT_EQ(call.counts().recorded, 1);
  EXPECT_EQ(call.counts().replays, 9);
}

TEST(GraphedCalls, ShareTheMemoryOfTheirStepsGraphs) {
  Watched graphs;
  EmulatedDevice device(c10::DeviceType::XPU);
  Net net = Training::fresh();
  net->to(kDevice);
  const auto optimizer = demi::optim::testing::make(KindId::kAdam, net->parameters(), {}, device);
  const c10::Device without_index(kDevice.type());
  Step step({.models = {&*net}, .optimizers = {optimizer.get()}},
            {.device = without_index, .graph = GraphMode::on}, graphs);
  GraphedCall call(
      {&*net}, [&](const Tensors& in) { return Tensors{net->forward(in[0])}; },
      {.device = without_index, .graph = GraphMode::on}, step);
  for (int i = 0; i < 8; ++i) {
    step.batch(
        Training::inputs(i), Training::targets(i),
        [&](const Tensors& in) { return net->forward(in[0]); },
        [](const at::Tensor& out, const Tensors& to) { return cross_entropy(out, to[0]); });
    call(Training::inputs(i));  // gradients of the step are there
    step.finish();
  }
  EXPECT_EQ(graphs.alone, 1);
  EXPECT_EQ(graphs.shared, 2);
  EXPECT_EQ(call.counts().replays, 5);
  EXPECT_EQ(step.graph_counts().replays, 7);
  EXPECT_THROW(GraphedCall(
                   {&*net}, [](const Tensors& in) { return in; }, {.device = c10::kCPU}, step),
               UsageError);
}

TEST(GraphedCalls, RefuseWhatDoesNotFit) {
  MachineGraphs graphs;
  Net net;
  net->to(kDevice);
  const auto same = [](const Tensors& in) { return in; };
  EXPECT_THROW(GraphedCall({}, same), UsageError);
  EXPECT_THROW(GraphedCall({nullptr}, same), UsageError);
  EXPECT_THROW(GraphedCall({&*net}, nullptr), UsageError);
  EXPECT_THROW(GraphedCall({&*net}, same, {.graph = GraphMode::on}), UsageError);
  GraphedCall call({&*net}, same, {.device = kDevice, .graph = GraphMode::on});
  EXPECT_THROW(call({at::ones({2})}), UsageError);
  GraphedCall here({&*net}, same, {.graph = GraphMode::automatic});
  EXPECT_TRUE(at::equal(here({at::ones({2})}).front(), at::ones({2})));
}

// Policy and value, and a batch that a program hands over in parts.
TEST(GraphedCalls, ReadSeveralModules) {
  MachineGraphs graphs;
  torch::nn::Linear one(6, 3), other(6, 1);
  one->to(kDevice);
  other->to(kDevice);
  GraphedCall call({&*one, &*other},
                   [&](const Tensors& in) {
                     return Tensors{one->forward(in[0]), other->forward(in[0])};
                   },
                   {.device = kDevice, .graph = GraphMode::on});
  for (int i = 0; i < 8; ++i) {
    if (i == 6) other->to(at::kDouble), other->to(at::kFloat);  // in other memory
    {
      const at::NoGradGuard no_grad;
      other->bias.fill_(i);
    }
    const Tensors seen = call(Training::inputs(i)), plain = call.plainly(Training::inputs(i));
    EXPECT_TRUE(at::equal(seen[0].cpu(), plain[0].cpu())) << i;
    EXPECT_TRUE(at::equal(seen[1].cpu(), plain[1].cpu())) << i;
  }
}

}  // namespace
