// AMP pattern 4, gradient penalty: the norm of the gradients joins the loss. The gradients are
// taken of the scaled loss, so that they do not underflow in fp16, and unscaled by hand before
// their norm, which is then not scaled twice. The Trainer's option gradient_penalty does the same.
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "demi/demi.h"
#include "examples/arguments.h"

namespace {

struct Result {
  double loss = 0, penalty = 0;
};

Result train(const torch::Tensor& x, const torch::Tensor& y, bool use_amp, torch::Dtype dtype) {
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::Tanh(),
                              torch::nn::Linear(32, 1));
  model->to(x.device());
  demi::optim::SGD optimizer(model->parameters(), demi::optim::SGDOptions(0.05));
  demi::GradScaler scaler(demi::GradScalerOptions{.init_scale = 1024, .enabled = use_amp});
  Result result;
  for (int step = 0; step < 50; ++step) {
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      demi::Autocast region(x.device().type(), {.dtype = dtype, .enabled = use_amp});
      loss = torch::mse_loss(model->forward(x), y);
    }
    const auto scaled =
        torch::autograd::grad({scaler.scale(loss)}, model->parameters(), {}, true, true);
    const double inverse_scale = 1 / scaler.get_scale();
    torch::Tensor squares = torch::zeros({}, x.device());
    for (const auto& gradient : scaled)
      squares = squares + (gradient.to(torch::kFloat) * inverse_scale).square().sum();
    const torch::Tensor penalty = 0.1 * squares.sqrt();
    scaler.scale(loss + penalty).backward();
    scaler.step(optimizer);
    scaler.update();
    result = {loss.item<double>(), penalty.item<double>()};
  }
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  const auto [device, dtype] = read_arguments(argc, argv, torch::kHalf);
  torch::manual_seed(0);
  const auto x = torch::randn({64, 8}).to(device), y = x.sum(1, true);
  const Result fp32 = train(x, y, false, dtype), mixed = train(x, y, true, dtype);
  std::printf("fp32  loss %.4f, penalty %.4f\n", fp32.loss, fp32.penalty);
  std::printf("mixed loss %.4f, penalty %.4f\n", mixed.loss, mixed.penalty);
  const double tolerance = dtype == torch::kHalf ? 0.03 : 0.1;
  const auto close = [&](double a, double b) { return std::fabs(a - b) < tolerance * b; };
  const bool right = close(mixed.loss, fp32.loss) && close(mixed.penalty, fp32.penalty) &&
                     fp32.loss < 1 && fp32.penalty > 0;
  return right ? EXIT_SUCCESS : EXIT_FAILURE;
}
