// An optimizer that evaluates the model several times a step (LBFGS) takes a closure, which scales
// the loss itself. The gradients are unscaled after each call of it.
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>

#include "demi/demi.h"
#include "examples/arguments.h"

int main(int argc, char** argv) {
  const auto [device, dtype] = read_arguments(argc, argv, torch::kHalf);
  torch::manual_seed(0);
  const auto x = torch::randn({64, 8}).to(device), y = x.sum(1, true);
  torch::nn::Linear model(8, 1);
  model->to(device);
  torch::optim::LBFGS optimizer(model->parameters(), torch::optim::LBFGSOptions(0.5));
  demi::GradScaler scaler(demi::GradScalerOptions{.init_scale = 1024});

  double first = 0, last = 0;
  for (int step = 0; step < 3; ++step) {
    const demi::StepResult result = scaler.step(optimizer, [&, device = device, dtype = dtype] {
      optimizer.zero_grad();
      torch::Tensor loss;
      {
        demi::Autocast region(device.type(), dtype);
        loss = torch::mse_loss(model->forward(x), y);
      }
      scaler.scale(loss).backward();
      return loss;
    });
    scaler.update();
    if (step == 0) first = result.loss().item<double>();
    last = torch::mse_loss(model->forward(x), y).item<double>();
  }
  std::printf("loss %.4f -> %.6f\n", first, last);
  return last < first / 1000 ? EXIT_SUCCESS : EXIT_FAILURE;
}
