// Where the ops of a trace ran, by the structure of a network that is written out here.
#include "demi/graph/work_trace.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

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

struct ScaleImpl : torch::nn::Module {
  ScaleImpl() {
    weight = register_parameter("weight", at::ones({3, 4}));
    bias = register_parameter("bias", at::ones({3, 4}));
  }
  at::Tensor weight, bias;
};
TORCH_MODULE(Scale);

/// Multiplies by a number that is another one each time, at one place. All ops are elementwise:
/// products and sums have ops within them, on a CPU, that write to memory of no op.
struct PlacesImpl : torch::nn::Module {
  PlacesImpl() {
    for (const char* name : {"first", "second", "head"})
      layers.push_back(register_module(name, Scale()));
  }
  at::Tensor planted(const std::string& here, const at::Tensor& x) const {
    return here == place ? x * factor : x;
  }
  at::Tensor forward(at::Tensor x) {
    x = planted("begin", x) * layers[0]->weight;
    x = at::relu(planted("between", x));
    if (place == "function") x = HalvedInBackward::apply(x, factor);
    if (place == "hook") x.register_hook([by = factor](const at::Tensor& g) { return g * by; });
    x = x * layers[1]->weight * planted("a weight", layers[2]->weight);
    x = planted("within the head", x) + layers[2]->bias;
    x = planted("end", x);
    return x * x;
  }
  std::vector<Scale> layers;
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
  Places places;
  places->place = place;
  const at::Tensor x = at::ones({3, 4}), gradients[] = {at::ones({3, 4}), at::ones({3, 4})};
  return difference(held_by(*places), Work::batch, [&](double factor) {
    places->factor = factor;
    for (const at::Tensor& weight : places->parameters()) weight.mutable_grad().reset();
    places->forward(x).backward(gradients[place == "gradient" && factor > 2 ? 1 : 0]);
  });
}

std::string number_differs(const std::string& place) {
  return "a number of the host is another one each time (" + place + ": 1.5, then 2.5)";
}

TEST(WorkTrace, NamesTheModuleByTheWeightsThatOpsRead) {
  EXPECT_EQ(difference_at(""), "");
  EXPECT_EQ(difference_at("begin"), number_differs("aten::mul, before the module first"));
  EXPECT_EQ(difference_at("between"),
            number_differs("aten::mul, between the modules first and second"));
  EXPECT_EQ(difference_at("a weight"), number_differs("aten::mul, in the module head"));
  EXPECT_EQ(difference_at("within the head"), number_differs("aten::mul, in the module head"));
  EXPECT_EQ(difference_at("end"), number_differs("aten::mul, after the module head"));
}

TEST(WorkTrace, NamesTheModuleWhoseBackwardItIs) {
  EXPECT_EQ(difference_at("gradient"),
            "a tensor that was not handed over is another one each time "
            "(aten::mul in MulBackward0, the backward of an op after the module head, "
            "shape [3, 4])");
  const std::string of_function = difference_at("function");
  EXPECT_NE(of_function.find("aten::mul in "), std::string::npos) << of_function;
  EXPECT_NE(of_function.find(
                "HalvedInBackward, the backward of an op between the modules first and second"),
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
