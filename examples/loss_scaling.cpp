// Why the loss is scaled: a small network whose gradients lie under 2^-24, fp16's smallest number.
//
// An MLP 16-64-1 on a mean squared error times 1e-6, SGD with a learning rate of 1e5, 300 steps,
// three times from the same weights: in FP32; in fp16, where every gradient is rounded to zero and
// nothing is learned; and in fp16 with the loss multiplied by 65536 before backward and the
// gradients divided by it after. Prints the three losses and exits with 1 unless scaling, and only
// scaling, brings fp16 to where FP32 goes. Micikevicius et al. 2017, section 3.2. bf16 has FP32's
// range and needs no scaling: with bf16 asked for, all three must learn.
#include <torch/torch.h>

#include <cmath>
#include <cstdio>

#include "demi/demi.h"
#include "examples/arguments.h"

namespace {

struct Problem {
  torch::Tensor input, target;
  torch::Dtype dtype;
};

enum class Mode { fp32, unscaled, scaled };

// Mean squared error after the last step, without the factor of 1e-6.
double train(const Problem& problem, Mode mode) {
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(16, 64), torch::nn::ReLU(),
                              torch::nn::Linear(64, 1));
  model->to(problem.input.device());
  torch::optim::SGD optimizer(model->parameters(), 1e5);
  demi::GradScaler scaler(demi::GradScalerOptions{.enabled = mode == Mode::scaled});
  double error = 0;
  for (int step = 0; step < 300; ++step) {
    optimizer.zero_grad();
    torch::Tensor mse;
    {
      demi::Autocast region(problem.input.device().type(),
                            {.dtype = problem.dtype, .enabled = mode != Mode::fp32});
      mse = torch::mse_loss(model->forward(problem.input), problem.target);  // FP32: losses are
    }
    scaler.scale(mse * 1e-6).backward();
    scaler.step(optimizer);
    scaler.update();
    error = mse.item<double>();
  }
  return error;
}

}  // namespace

int main(int argc, char** argv) {
  const auto [device, dtype] = read_arguments(argc, argv, torch::kHalf);
  torch::manual_seed(0);
  const auto input = torch::randn({256, 16}), target = input.matmul(torch::randn({16, 1}) / 4);
  const Problem problem{input.to(device), target.to(device), dtype};
  const double fp32 = train(problem, Mode::fp32);
  const double unscaled = train(problem, Mode::unscaled);
  const double scaled = train(problem, Mode::scaled);
  const bool is_half = dtype == torch::kHalf;
  std::printf("mean squared error after 300 steps\n");
  std::printf("  fp32                  %.4f\n", fp32);
  std::printf("  %s, loss unscaled   %.4f\n", is_half ? "fp16" : "bf16", unscaled);
  std::printf("  %s, loss × 65536    %.4f\n", is_half ? "fp16" : "bf16", scaled);
  const auto as_fp32 = [&](double error) { return std::fabs(error - fp32) < 0.25 * fp32; };
  const bool unscaled_is_right = is_half ? unscaled > 5 * fp32 : as_fp32(unscaled);
  return as_fp32(scaled) && unscaled_is_right ? 0 : 1;
}
