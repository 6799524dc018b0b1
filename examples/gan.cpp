// Two models that train against each other, in two turns with one scaler: what PyTorch's page on
// automatic mixed precision does for several models and optimizers, by loop::Step. Each backward
// gives gradients to the parameters of its own turn alone. An overflow in either turn halves the
// scale once.
//
//     gan [DEVICE [DTYPE]]
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "demi/demi.h"
#include "examples/arguments.h"

namespace {

using torch::nn::Linear;

torch::nn::Sequential make(int64_t in, int64_t out, torch::Device device) {
  torch::nn::Sequential model(Linear(in, 64), torch::nn::LeakyReLU(), Linear(64, 64),
                              torch::nn::LeakyReLU(), Linear(64, out));
  model->to(device);
  return model;
}

torch::Tensor against(const torch::Tensor& logits, double label) {
  return torch::binary_cross_entropy_with_logits(logits.to(torch::kFloat),
                                                 torch::full_like(logits, label, torch::kFloat));
}

}  // namespace

int main(int argc, char** argv) {
  const auto [device, dtype] = read_arguments(argc, argv, torch::kHalf);
  torch::manual_seed(0);
  // The generator learns to give points on a circle of radius 2.
  auto generator = make(8, 2, device), critic = make(2, 1, device);
  using demi::optim::Adam;
  using demi::optim::AdamOptions;
  Adam adam_g(generator->parameters(), AdamOptions(5e-4).betas({0.5, 0.9}));
  Adam adam_c(critic->parameters(), AdamOptions(5e-4).betas({0.5, 0.9}));
  demi::GradScaler scaler({.enabled = dtype == torch::kHalf});
  const auto noise = [&, on = device] { return torch::randn({256, 8}, on); };
  const auto radius = [&] {
    const torch::NoGradGuard no_grad;
    return generator->forward(noise()).norm(2, 1).mean().item<double>();
  };
  const double before = radius();

  using Losses = std::vector<torch::Tensor>;
  demi::loop::Step step(
      {.models = {{"generator", generator.get()}, {"critic", critic.get()}},
       .optimizers = {&adam_g, &adam_c},
       .scaler = &scaler},
      {.precision = demi::parse_precision(dtype == torch::kHalf ? "fp16" : "bf16"),
       .device = device});
  for (int n = 0; n < 800; ++n) {
    const auto angle = torch::rand({256, 1}, device) * (2 * M_PI);
    const auto real = torch::cat({angle.cos(), angle.sin()}, 1) * 2;
    const auto z = noise();
    step.batch(
        [&] {
          const auto fake = generator->forward(z).detach();
          return Losses{against(critic->forward(real), 1) + against(critic->forward(fake), 0)};
        },
        {.of = {&adam_c}});
    step.take(adam_c);
    step.batch([&] { return Losses{against(critic->forward(generator->forward(z)), 1)}; },
               {.of = {&adam_g}});
    step.finish();  // takes adam_g, then updates the scaler once
  }

  const double after = radius();
  std::printf("mean radius of what the generator gives: %.2f, then %.2f (2 is asked for)\n", before,
              after);
  // The two never settle: somewhere near the circle is what can be asked for.
  const bool learned = before < 0.5 && after > 1 && after < 4;
  return learned ? EXIT_SUCCESS : EXIT_FAILURE;
}
