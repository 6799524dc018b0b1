// AMP pattern 2, gradient clipping: gradients carry the loss scale until they are unscaled, so
// unscale_ comes before the clipping. scaler.step then knows that they are, and does not do it
// again.
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "demi/demi.h"
#include "examples/arguments.h"

int main(int argc, char** argv) {
  const auto [device, dtype] = read_arguments(argc, argv, torch::kHalf);
  constexpr double kMaxNorm = 0.1;
  torch::manual_seed(0);
  const auto x = torch::randn({64, 8}).to(device), y = 3 * x.sum(1, true);
  torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::ReLU(),
                              torch::nn::Linear(32, 1));
  model->to(device);
  const auto parameters = model->parameters();
  demi::optim::SGD optimizer(parameters, demi::optim::SGDOptions(1.0));
  demi::GradScaler scaler;

  double largest_norm = 0, largest_error = 0;
  for (int step = 0; step < 20; ++step) {
    const auto before = torch::nn::utils::parameters_to_vector(parameters).detach().clone();
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      demi::Autocast region(device.type(), dtype);
      loss = torch::mse_loss(model->forward(x), y);
    }
    scaler.scale(loss).backward();

    scaler.unscale_(optimizer);
    const auto norm = demi::optim::clip_grad_norm_(parameters, kMaxNorm);  // of the true gradients
    const demi::StepResult result = scaler.step(optimizer);
    scaler.update();

    if (result.skipped()) continue;
    // SGD with a learning rate of 1 moves the weights by the clipped gradients themselves.
    const auto after = torch::nn::utils::parameters_to_vector(parameters).detach();
    const double moved = (after - before).norm().item<double>();
    const double expected = std::min(norm.item<double>(), kMaxNorm);
    largest_norm = std::max(largest_norm, norm.item<double>());
    largest_error = std::max(largest_error, std::fabs(moved - expected) / expected);
  }
  std::printf("norm before clipping up to %.2f, after it %.2f within %.1e\n", largest_norm,
              kMaxNorm, largest_error);
  return largest_norm > 1 && largest_error < 1e-3 ? EXIT_SUCCESS : EXIT_FAILURE;
}
