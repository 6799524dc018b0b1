// Sigmoid and BCELoss in a region, and what to write instead.
//
// A probability in 16 bits is 1 from a logit of about 6 on (fp16: 8), so its loss is that of being
// infinitely wrong, and its gradient is 0 (fp16: NaN): such an example is never learned. CUDA's
// lists therefore refuse binary_cross_entropy. A CPU's run it in FP32, but on the probability that
// was rounded before; a rule makes the CPU refuse it, too, so that what was written there runs on a
// GPU.
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "demi/demi.h"
#include "examples/arguments.h"

namespace {

// A confident and wrong answer: logit 12 where 0 is right. The loss is 12, its gradient 1.
struct Wrong {
  torch::Tensor x, target, weight;
  double loss = 0, gradient = 0;

  explicit Wrong(torch::Device device)
      : x(torch::ones({1, 1}, device)),
        target(torch::zeros({1, 1}, device)),
        weight(torch::full({1, 1}, 12.0, device).requires_grad_()) {}

  torch::Tensor logit() const { return torch::mm(x, weight); }  // 16 bit in a region
  void backward(const torch::Tensor& of) {
    of.backward();
    loss = of.item<double>();
    gradient = weight.grad().item<double>();
  }
};

}  // namespace

int main(int argc, char** argv) {
  const auto [device, dtype] = read_arguments(argc, argv, torch::kBFloat16);
  bool refused = false;
  try {
    demi::OpPolicy as_on_cuda;
    as_on_cuda.set("binary_cross_entropy", demi::OpCategory::banned);
    demi::Autocast region(device.type(), {.dtype = dtype, .policy = as_on_cuda});
    const Wrong wrong(device);
    torch::nn::BCELoss()(torch::sigmoid(wrong.logit()), wrong.target);
  } catch (const demi::UsageError& error) {
    std::printf("%s\n", error.what());
    refused = std::string_view(error.what()).find("BCEWithLogitsLoss") != std::string_view::npos;
  }

  Wrong apart(device), together(device);
  {
    demi::OpPolicy as_on_cpu;
    as_on_cpu.set("binary_cross_entropy", demi::OpCategory::fp32);
    demi::Autocast region(device.type(), {.dtype = dtype, .policy = as_on_cpu});
    apart.backward(torch::nn::BCELoss()(torch::sigmoid(apart.logit()), apart.target));
    together.backward(torch::nn::BCEWithLogitsLoss()(together.logit(), together.target));  // *
  }
  std::printf("sigmoid, then BCELoss  loss %5.1f  gradient %.2f\n", apart.loss, apart.gradient);
  std::printf("BCEWithLogitsLoss      loss %5.1f  gradient %.2f\n", together.loss,
              together.gradient);
  const bool stuck = apart.gradient == 0 || std::isnan(apart.gradient);
  const bool right =
      std::fabs(together.loss - 12) < 0.01 && std::fabs(together.gradient - 1) < 0.01;
  return refused && stuck && right ? EXIT_SUCCESS : EXIT_FAILURE;
}
