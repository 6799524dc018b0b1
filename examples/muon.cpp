// Muon for the hidden layers of a network and AdamW for the rest, as one optimizer, beside AdamW
// for all.
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>

#include "demi/demi.h"
#include "examples/arguments.h"

namespace {

torch::nn::Sequential network() {
  return torch::nn::Sequential(
      torch::nn::Linear(16, 128), torch::nn::GELU(), torch::nn::Linear(128, 128), torch::nn::GELU(),
      torch::nn::Linear(128, 128), torch::nn::GELU(), torch::nn::Linear(128, 1));
}

// Learns the product of two sums of its inputs. Returns the mean loss of the last ten steps.
double train(const Arguments& on, torch::nn::Sequential& model, demi::optim::Optimizer& optimizer) {
  demi::GradScaler scaler;
  double last = 0;
  for (int step = 0; step < 100; ++step) {
    torch::manual_seed(step);
    const auto input = torch::randn({256, 16}).to(on.device);
    const auto target = input.narrow(1, 0, 8).sum(1, true) * input.narrow(1, 8, 8).sum(1, true) / 8;
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
  torch::manual_seed(7);
  auto one = network(), other = network();
  one->to(on.device);
  other->to(on.device);

  demi::optim::AdamW adamw(one->parameters(), demi::optim::AdamWOptions(1e-3));
  demi::optim::MultiOptimizer muon(demi::optim::muon_groups(*other, demi::optim::MuonOptions(0.02),
                                                            demi::optim::AdamWOptions(1e-3)));

  const double by_adamw = train(on, one, adamw), by_muon = train(on, other, muon);
  std::printf("mean squared error after 100 steps\n  AdamW          %.4f\n  Muon and AdamW %.4f\n",
              by_adamw, by_muon);
  return by_muon < by_adamw ? EXIT_SUCCESS : EXIT_FAILURE;
}
