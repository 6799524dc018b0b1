// AMP pattern 5, several models, losses and optimizers with one scaler: each loss is scaled, each
// optimizer decides by its own gradients whether it steps, and update comes once, at the end.
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "demi/demi.h"
#include "examples/arguments.h"

int main(int argc, char** argv) {
  const auto [device, dtype] = read_arguments(argc, argv, torch::kHalf);
  torch::manual_seed(0);
  const auto x = torch::randn({64, 8}).to(device), y = x.sum(1, true);
  torch::nn::Linear model0(8, 1), model1(8, 1);
  model0->to(device);
  model1->to(device);
  demi::optim::SGD optimizer0(model0->parameters(), demi::optim::SGDOptions(1e-2));
  demi::optim::AdamW optimizer1(model1->parameters(), demi::optim::AdamWOptions(1e-2));
  demi::GradScaler scaler;

  double first = 0, last = 0;
  demi::StepResult result0, result1;
  const auto step = [&, device = device, dtype = dtype](bool spoil) {
    optimizer0.zero_grad();
    optimizer1.zero_grad();
    torch::Tensor loss0, loss1;
    {
      demi::Autocast region(device.type(), dtype);
      const auto output0 = model0->forward(x), output1 = model1->forward(x);
      loss0 = torch::mse_loss(2 * output0 + 3 * output1, y);
      loss1 = torch::mse_loss(3 * output0 - 5 * output1, y);
    }
    // The losses share a part of the graph, which has nothing to do with mixed precision.
    scaler.scale(loss0).backward({}, /*retain_graph=*/true);
    scaler.scale(loss1).backward();
    if (spoil) model1->weight.mutable_grad()[0][0] = std::numeric_limits<float>::infinity();

    scaler.unscale_(optimizer0);  // for who wants to look at the gradients of this one
    result0 = scaler.step(optimizer0);
    result1 = scaler.step(optimizer1);
    scaler.update();
    last = (loss0 + loss1).item<double>();
  };

  step(false);
  first = last;
  for (int i = 0; i < 300; ++i) step(false);

  // An Inf in the gradients of one optimizer holds back that one alone, and the scale backs off.
  const auto weight0 = model0->weight.detach().clone(), weight1 = model1->weight.detach().clone();
  const double scale = scaler.get_scale();
  step(true);
  const bool one_stepped = !result0.skipped() && !torch::equal(model0->weight, weight0);
  const bool one_waited = result1.skipped() && torch::equal(model1->weight, weight1);
  const bool backed_off = scaler.get_scale() == scale / 2;

  std::printf("losses together %.3f -> %.3f; after an Inf: %s stepped, %s skipped, scale %.0f\n",
              first, last, one_stepped ? "first" : "none", one_waited ? "second" : "none",
              scaler.get_scale());
  const bool right = last < first / 20 && one_stepped && one_waited && backed_off;
  return right ? EXIT_SUCCESS : EXIT_FAILURE;
}
