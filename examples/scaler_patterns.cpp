// The patterns of loss scaling: plain, with clipping, with accumulation, with two optimizers, with
// a closure.
#include <torch/torch.h>

#include <cstdio>

#include "demi/autocast/autocast.h"
#include "demi/optim/adamw.h"
#include "demi/optim/clip.h"
#include "demi/optim/lr_scheduler.h"
#include "demi/optim/sgd.h"
#include "demi/scaler/grad_scaler.h"

namespace {

torch::Tensor loss_of(torch::nn::Sequential& model, const torch::Tensor& x,
                      const torch::Tensor& y) {
  demi::Autocast region(torch::kCPU, torch::kBFloat16);
  return torch::mse_loss(model->forward(x).to(torch::kFloat), y);
}

torch::nn::Sequential small_model() {
  return torch::nn::Sequential(torch::nn::Linear(4, 16), torch::nn::ReLU(),
                               torch::nn::Linear(16, 1));
}

}  // namespace

int main() {
  torch::manual_seed(1);
  const torch::Tensor x = torch::randn({64, 4}), y = x.sum(1, true);
  torch::nn::Sequential model = small_model();
  const double before = loss_of(model, x, y).item<double>();

  demi::GradScaler scaler;
  demi::optim::AdamW optimizer(model->parameters(), demi::optim::AdamWOptions(1e-2));
  demi::optim::lr::Scheduler schedule(optimizer, demi::optim::lr::cosine(200));

  // Scale, backward, clip the true gradients, step unless one is Inf or NaN, adjust the scale.
  for (int step = 0; step < 100; ++step) {
    optimizer.zero_grad();
    scaler.scale(loss_of(model, x, y)).backward();
    scaler.unscale_(optimizer);
    demi::optim::clip_grad_norm_(model->parameters(), 1.0);
    const demi::StepResult result = scaler.step(optimizer);
    scaler.update();
    schedule.step(result);  // a skipped step does not count
  }

  // Accumulation: one scale for the whole window, so step and update only at its end.
  for (int micro = 0; micro < 4; ++micro) scaler.scale(loss_of(model, x, y) / 4).backward();
  scaler.step(optimizer);
  scaler.update();

  // Two models, two optimizers, one scaler; each skips by its own gradients.
  torch::nn::Sequential other = small_model();
  demi::optim::SGD second(other->parameters(), demi::optim::SGDOptions(1e-2).momentum(0.9));
  optimizer.zero_grad();
  scaler.scale(loss_of(model, x, y)).backward();
  scaler.scale(loss_of(other, x, y)).backward();
  scaler.step(optimizer);
  scaler.step(second);
  scaler.update();

  // A closure, for optimizers that evaluate the model several times.
  torch::nn::Sequential third = small_model();
  torch::optim::LBFGS lbfgs(third->parameters(), torch::optim::LBFGSOptions(0.1));
  scaler.step(lbfgs, [&] {
    lbfgs.zero_grad();
    const torch::Tensor loss = loss_of(third, x, y);
    scaler.scale(loss).backward();
    return loss;
  });
  scaler.update();

  const double after = loss_of(model, x, y).item<double>();
  std::printf("loss %.4f -> %.4f, scale %.0f\n", before, after, scaler.get_scale());
  return after < before / 4 ? 0 : 1;
}
