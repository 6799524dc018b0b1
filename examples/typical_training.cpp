// AMP pattern 1, typical mixed precision training: forward and loss in the region, backward outside
// of it, the scaler around backward and step.
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>

#include "demi/demi.h"
#include "examples/arguments.h"

int main(int argc, char** argv) {
  const auto [device, dtype] = read_arguments(argc, argv, torch::kHalf);
  torch::manual_seed(0);
  const auto x = torch::randn({64, 8}).to(device), y = x.sum(1, true).tanh();
  torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::ReLU(),
                              torch::nn::Linear(32, 1));
  model->to(device);
  demi::optim::AdamW optimizer(model->parameters(), demi::optim::AdamWOptions(1e-2));
  demi::GradScaler scaler;  // one for the whole run

  double first = 0, last = 0;
  int64_t skipped = 0;
  for (int step = 0; step < 200; ++step) {
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      demi::Autocast region(device.type(), dtype);
      const auto output = model->forward(x);  // 16 bits
      loss = torch::mse_loss(output, y);      // FP32: losses are
    }
    scaler.scale(loss).backward();

    // Divides the gradients by the scale; where one is Inf or NaN the optimizer does nothing.
    const demi::StepResult result = scaler.step(optimizer);
    scaler.update();  // the next scale

    skipped += result.skipped();
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  std::printf("loss %.4f -> %.4f, %lld of 200 steps skipped, scale %.0f\n", first, last,
              static_cast<long long>(skipped), scaler.get_scale());
  return last < first / 20 && skipped < 10 ? EXIT_SUCCESS : EXIT_FAILURE;
}
