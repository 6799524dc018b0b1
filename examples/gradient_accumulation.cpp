// AMP pattern 3, gradient accumulation: the gradients of several micro-batches make one step. All
// of them must carry one scale, so step and update come once, at the end of the window.
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>

#include "demi/demi.h"
#include "examples/arguments.h"

namespace {

// The weights after some steps on `x`, each step's batch cut into `micro_batches`.
torch::Tensor train(const torch::Tensor& x, const torch::Tensor& y, int64_t micro_batches,
                    torch::Dtype dtype) {
  torch::manual_seed(1);
  torch::nn::Linear model(8, 1);
  model->to(x.device());
  demi::optim::SGD optimizer(model->parameters(), demi::optim::SGDOptions(0.1));
  // Low enough that no step of either way overflows fp16: a skipped one would set them apart.
  demi::GradScaler scaler(demi::GradScalerOptions{.init_scale = 1024});
  for (int step = 0; step < 20; ++step) {
    const auto inputs = x.chunk(micro_batches), targets = y.chunk(micro_batches);
    for (int64_t i = 0; i < micro_batches; ++i) {
      torch::Tensor loss;
      {
        demi::Autocast region(x.device().type(), dtype);
        loss = torch::mse_loss(model->forward(inputs[i]), targets[i]);
        loss = loss / static_cast<double>(micro_batches);  // the mean over the whole batch
      }
      scaler.scale(loss).backward();
    }
    scaler.step(optimizer);  // unscale_ and clip_grad_norm_ would stand before it
    scaler.update();
    optimizer.zero_grad();
  }
  return model->weight.detach();
}

}  // namespace

int main(int argc, char** argv) {
  const auto [device, dtype] = read_arguments(argc, argv, torch::kHalf);
  torch::manual_seed(0);
  const auto x = torch::randn({64, 8}).to(device), y = x.sum(1, true);
  const auto whole = train(x, y, 1, dtype), parts = train(x, y, 4, dtype);
  const double difference = (whole - parts).abs().max().item<double>();
  const double error = (whole - 1).abs().max().item<double>();
  std::printf("1 x 64 and 4 x 16 rows differ by %.1e in the weights; to the true ones %.2f\n",
              difference, error);
  const double tolerance = dtype == torch::kHalf ? 1e-3 : 8e-3;  // bf16 has 3 bits fewer
  return difference < tolerance && error < 0.3 ? EXIT_SUCCESS : EXIT_FAILURE;
}
