// One process, one module, several replicas: each gets a part of the batch. Here two on one device;
// without `devices`, one on each GPU.
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>

#include "demi/demi.h"
#include "examples/arguments.h"

int main(int argc, char** argv) {
  const auto [device, dtype] = read_arguments(argc, argv, torch::kBFloat16);
  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::Tanh(),
                              torch::nn::Linear(32, 1));
  model->to(device);
  demi::DataParallel parallel(model, {.devices = {device, device}});
  demi::optim::SGD optimizer(model->parameters(), demi::optim::SGDOptions(0.1));
  demi::GradScaler scaler(demi::GradScalerOptions{.init_scale = 1024});

  const auto x = torch::randn({63, 8}).to(device), y = torch::tanh(x.sum(1, true));
  double first = 0, last = 0;
  for (int step = 0; step < 100; ++step) {
    torch::Tensor output, loss;
    {
      const demi::Autocast region(device.type(), dtype);  // reaches both replicas
      output = parallel(x);
      loss = torch::mse_loss(output, y);
    }
    if (output.scalar_type() != dtype) return EXIT_FAILURE;
    scaler.scale(loss).backward();  // the gradients of both, in the module's parameters
    scaler.step(optimizer);
    scaler.update();
    optimizer.zero_grad();
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  std::printf("loss %.3f, then %.3f\n", first, last);
  return last < first / 4 ? EXIT_SUCCESS : EXIT_FAILURE;
}
