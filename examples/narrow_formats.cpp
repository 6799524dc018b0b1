// What linear layers of 8 and 4 bits do to a network: each recipe beside the region's 16 bits, in
// emulation, so that it needs no GPU that has them.
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "demi/demi.h"
#include "examples/arguments.h"

namespace {

torch::nn::Sequential network() {
  torch::manual_seed(7);
  return torch::nn::Sequential(torch::nn::Linear(32, 128), torch::nn::GELU(),
                               torch::nn::Linear(128, 128), torch::nn::GELU(),
                               torch::nn::Linear(128, 1));
}

// Learns the sum of its inputs' absolute values. Returns the mean loss of the last ten steps.
double train(const Arguments& on, torch::nn::Sequential& model) {
  demi::optim::AdamW optimizer(model->parameters(), demi::optim::AdamWOptions(2e-3));
  demi::GradScaler scaler;
  double last = 0;
  for (int step = 0; step < 100; ++step) {
    torch::manual_seed(step);
    demi::set_step(*model, step);  // loop::Step and Trainer do it themselves
    const auto input = torch::randn({256, 32}).to(on.device);
    const auto target = input.abs().mean(1, true);
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      const demi::Autocast region(on.device.type(), {.dtype = on.dtype});
      loss = torch::mse_loss(model->forward(input).to(torch::kFloat), target);
    }
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
    if (step >= 90) last += loss.item<double>() / 10;
  }
  return last;
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments on = read_arguments(argc, argv, torch::kBFloat16);
  auto wide = network();
  wide->to(on.device);
  const double in_16_bits = train(on, wide);
  std::printf("mean squared error after 100 steps\n  %-18s %.5f\n", "16 bits", in_16_bits);

  bool is_near = true;
  for (const demi::quantization::Recipe& recipe : demi::quantization::recipes()) {
    auto model = network();
    model->to(on.device);
    demi::apply(demi::OpPolicy::of_recipe(recipe.name, *model), *model);
    const double loss = train(on, model);
    std::printf("  %-18s %.5f  %zu layers: %s\n", std::string(recipe.name).c_str(), loss,
                demi::quantized_layers(*model).size(), std::string(recipe.summary).c_str());
    is_near &= loss < 3 * in_16_bits + 0.01;
  }
  return is_near ? EXIT_SUCCESS : EXIT_FAILURE;
}
