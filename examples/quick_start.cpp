// Mixed precision training: an ordinary LibTorch loop, and what changes. Lines marked
// with a star are the ones that differ from FP32 training.
#include <torch/torch.h>

#include <cstdio>

#include "demi/demi.h"
#include "examples/arguments.h"

int main(int argc, char** argv) {
  const auto [device, dtype] = read_arguments(argc, argv, torch::kBFloat16);
  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(64, 256), torch::nn::ReLU(),
                              torch::nn::Linear(256, 10));
  model->to(device);
  const torch::Tensor input = torch::randn({512, 64}, device);
  const torch::Tensor target = input.slice(1, 0, 10).argmax(1);

  demi::optim::AdamW optimizer(model->parameters(), demi::optim::AdamWOptions(1e-3));  // *
  demi::GradScaler scaler;                                                             // *

  double first = 0, last = 0;
  for (int step = 0; step < 100; ++step) {
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      demi::Autocast region(device.type(), dtype);                  // *
      const torch::Tensor output = model->forward(input);           // 16 bits
      loss = torch::nn::functional::cross_entropy(output, target);  // FP32: losses are
    }
    scaler.scale(loss).backward();  // *
    scaler.step(optimizer);         // *
    scaler.update();                // *
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  std::printf("loss %.3f -> %.3f, loss scale %.0f\n", first, last,
              static_cast<double>(scaler.get_scale()));
  return last < first / 2 ? 0 : 1;
}
