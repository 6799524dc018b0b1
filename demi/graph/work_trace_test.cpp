// Where the ops of a trace ran, by the structure of a network that is written out here.
#include "demi/graph/work_trace.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <string>

namespace demi::graph {
namespace {

using Work = WorkTrace::Work;

struct HalvedInBackward : torch::autograd::Function<HalvedInBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            double factor) {
    context->saved_data["factor"] = factor;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    return {gradients[0] * context->saved_data["factor"].toDouble(), at::Tensor()};
  }
};

/// Multiplies by a number that is another one each time, at one place. Its ops are such as write to
/// no memory that a kernel of the CPU has allocated by itself, as addmm and mean do: that is
/// another tensor each time.
struct PlacesImpl : torch::nn::Module {
  PlacesImpl() {
    const auto plain = torch::nn::LinearOptions(4, 4).bias(false);
    features = register_module("features",
                               torch::nn::Sequential(torch::nn::Linear(plain), torch::nn::ReLU(),
                                                     torch::nn::Linear(plain)));
    head = register_module("head", torch::nn::Linear(4, 2));
  }
  at::Tensor planted(const std::string& here, const at::Tensor& x) const {
    return here == place ? x * factor : x;
  }
  at::Tensor forward(at::Tensor x) {
    x = planted("first", x);
    x = features[0]->as<torch::nn::Linear>()->forward(x);
    x = features[1]->as<torch::nn::ReLU>()->forward(planted("features.1", x));
    if (place == "function") x = HalvedInBackward::apply(x, factor);
    if (place == "hook") x.register_hook([by = factor](const at::Tensor& g) { return g * by; });
    x = features[2]->as<torch::nn::Linear>()->forward(x);
    x = at::mm(x, planted("a weight", head->weight).t());
    x = planted("within the head", x) + head->bias;
    return planted("last", x).square().sum() * 2;
  }
  torch::nn::Sequential features{nullptr};
  torch::nn::Linear head{nullptr};
  std::string place;
  double factor = 1;
};
TORCH_MODULE(Places);

NamedTensors held_by(const torch::nn::Module& module) {
  NamedTensors held;
  for (const auto& one : module.named_parameters()) held.emplace_back(one.key(), one.value());
  return held;
}

/// How the second of two runs differs from the first one.
std::string difference(const NamedTensors& held, Work work,
                       const std::function<void(double)>& run) {
  std::unique_ptr<WorkTrace> traces[2];
  for (const int i : {0, 1}) {
    traces[i] = WorkTrace::begin({}, held, work);
    run(1.5 + i);
    traces[i]->end();
  }
  return traces[0]->difference(*traces[1]);
}

std::string difference_at(const std::string& place) {
  torch::manual_seed(1);
  Places places;
  places->place = place;
  const at::Tensor x = at::randn({3, 4});
  return difference(held_by(*places), Work::batch, [&](double factor) {
    places->factor = place == "loss" ? 1 : factor;
    for (const at::Tensor& weight : places->parameters()) weight.mutable_grad().reset();
    const at::Tensor loss = places->forward(x);
    loss.backward(place == "loss" ? at::full({}, factor) : at::Tensor());
  });
}

std::string number_differs(const std::string& place) {
  return "a number of the host is another one each time (" + place + ": 1.5, then 2.5)";
}

TEST(WorkTrace, NamesTheModuleByTheWeightsThatOpsRead) {
  EXPECT_EQ(difference_at(""), "");
  EXPECT_EQ(difference_at("first"), number_differs("aten::mul, before the module features.0"));
  EXPECT_EQ(difference_at("features.1"),
            number_differs("aten::mul, between the modules features.0 and features.2"));
  EXPECT_EQ(difference_at("a weight"), number_differs("aten::mul, in the module head"));
  EXPECT_EQ(difference_at("within the head"), number_differs("aten::mul, in the module head"));
  EXPECT_EQ(difference_at("last"), number_differs("aten::mul, after the module head"));
}

TEST(WorkTrace, NamesTheModuleWhoseBackwardItIs) {
  EXPECT_EQ(
      difference_at("loss"),
      number_differs("aten::mul in MulBackward0, the backward of an op after the module head"));
  const std::string of_function = difference_at("function");
  EXPECT_NE(of_function.find("aten::mul in "), std::string::npos) << of_function;
  EXPECT_NE(
      of_function.find(
          "HalvedInBackward, the backward of an op between the modules features.0 and features.2"),
      std::string::npos)
      << of_function;
  EXPECT_EQ(difference_at("hook"), number_differs("aten::mul, in backward"));
}

// A weight of the model itself, and what follows backward, are named by the weight.
TEST(WorkTrace, NamesTheWeightWhereThereIsNoModule) {
  const torch::nn::Linear linear(4, 2);
  const at::Tensor x = at::randn({3, 4});
  const auto run = [&](double factor) { static_cast<void>(linear->weight.square() * factor); };
  EXPECT_EQ(difference(held_by(*linear), Work::batch, run),
            number_differs("aten::mul, after a use of weight"));
  EXPECT_EQ(difference({{"features.0.weight", linear->weight}}, Work::finish, run),
            number_differs("aten::mul, after a use of features.0.weight"));
  EXPECT_EQ(difference({}, Work::batch, run), number_differs("aten::mul"));
}

}  // namespace
}  // namespace demi::graph
