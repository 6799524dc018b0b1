// libtorch_alone.cpp with demi: the weights of each step, the region around, the state after an
// exception, and small gradients are right. docs/guide/autocast_guard.md has both outputs.
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <stdexcept>

#include "demi/demi.h"

namespace {

/// y = w x with w = 1.
torch::nn::Conv2d one_weight() {
  torch::nn::Conv2d layer(torch::nn::Conv2dOptions(1, 1, 1).bias(false));
  const torch::NoGradGuard no_grad;
  layer->weight.fill_(1);
  return layer;
}

/// Eight steps towards y = 3 for x = 1.
bool trains_with_the_weights_of_each_step() {
  torch::nn::Conv2d layer = one_weight();
  torch::optim::SGD sgd(layer->parameters(), 0.25);
  const torch::Tensor x = torch::ones({1, 1, 1, 1});
  torch::Tensor y;
  for (int step = 0; step < 8; ++step) {
    sgd.zero_grad();
    {
      const demi::Autocast region(torch::kCPU, torch::kBFloat16);
      y = layer->forward(x);
    }
    (y.to(torch::kFloat) - 3).square().sum().backward();
    sgd.step();
  }
  const auto weight = layer->weight.item<float>(), output = y.item<float>();
  std::printf("after 8 steps towards 3: weight %.2f, output %.2f\n", weight, output);
  return std::abs(weight - 3) < 0.02 && std::abs(output - 3) < 0.02;
}

bool goes_back_to_the_region_around_it() {
  torch::nn::Conv2d layer = one_weight();
  const torch::Tensor x = torch::ones({1, 1, 1, 1});
  const demi::Autocast outer(torch::kCPU, torch::kBFloat16);
  { const demi::Autocast inner(torch::kCPU, torch::kHalf); }
  const torch::Tensor y = layer->forward(x);
  std::printf("in the outer region, behind an inner one: %s\n", c10::toString(y.scalar_type()));
  return y.scalar_type() == torch::kBFloat16;
}

bool is_off_after_an_exception() {
  torch::nn::Conv2d layer = one_weight();
  try {
    const demi::Autocast region(torch::kCPU, torch::kBFloat16);
    layer->forward(torch::ones({1, 2, 1, 1}));  // a wrong shape
  } catch (const std::exception&) {
  }
  const torch::Tensor y = layer->forward(torch::ones({1, 1, 1, 1}));
  std::printf("outside, after an exception in a region: %s\n", c10::toString(y.scalar_type()));
  return y.scalar_type() == torch::kFloat;
}

/// The gradient of the output is 1e-8; fp16's least number is 6e-8.
bool keeps_small_gradients() {
  torch::nn::Conv2d layer = one_weight();
  torch::optim::SGD sgd(layer->parameters(), 0);
  demi::GradScaler scaler;
  torch::Tensor y;
  {
    const demi::Autocast region(torch::kCPU, torch::kHalf);
    y = layer->forward(torch::ones({1, 1, 1, 1}));
  }
  scaler.scale((y.to(torch::kFloat) * 1e-8).sum()).backward();
  scaler.unscale_(sgd);
  const auto gradient = layer->weight.grad().item<float>();
  std::printf("gradient of the weight, 1e-08 in truth: %.2g\n", gradient);
  return std::abs(gradient - 1e-8) < 1e-11;
}

}  // namespace

int main() {
  const bool right = trains_with_the_weights_of_each_step() & goes_back_to_the_region_around_it() &
                     is_off_after_an_exception() & keeps_small_gradients();
  return right ? 0 : 1;
}
