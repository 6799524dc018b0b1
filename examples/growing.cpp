// A model whose parameters change size while it trains, as in Gaussian splatting (Kerbl et al.
// 2023) in two dimensions: a picture as a sum of coloured spots. Each 100 steps spots that hardly
// show are pruned, and those whose places have the largest gradients are split in two;
// demi::optim::replace_parameter takes moments, step counts and averages along.
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iterator>

#include "demi/demi.h"
#include "examples/arguments.h"

namespace {

constexpr int64_t kMostSpots = 256;

struct Spots : torch::nn::Module {
  torch::Tensor places;   // (N, 2), 0 to 1
  torch::Tensor widths;   // (N), logarithms
  torch::Tensor colours;  // (N, 3)

  explicit Spots(int64_t count)
      : places(register_parameter("places", torch::rand({count, 2}))),
        widths(register_parameter("widths", torch::full({count}, std::log(0.2)))),
        colours(register_parameter("colours", torch::randn({count, 3}) * 0.1)) {}

  // (P, 2) -> (P, 3)
  torch::Tensor forward(const torch::Tensor& pixels) {
    const auto squares = (pixels.unsqueeze(1) - places).square().sum(2);  // (P, N), FP32
    const auto weights = torch::exp(squares * torch::exp(widths * -2) * -0.5);
    return torch::matmul(weights, colours);  // 16 bits
  }

  // `rows`: the old row of each new one, -1 for none.
  void replace(demi::optim::Optimizer& optimizer, const char* name, torch::Tensor Spots::*member,
               const torch::Tensor& values, const torch::Tensor& rows) {
    const torch::Tensor old = this->*member;
    this->*member = parameters_[name] = values.detach().requires_grad_();
    demi::optim::replace_parameter(optimizer, old, this->*member, rows);
  }
};

// Prunes and splits. `pull`: (N), the length of the gradient of each place, over the last steps.
void prune_and_split(Spots& spots, demi::optim::Optimizer& optimizer, const torch::Tensor& pull) {
  const torch::NoGradGuard no_grad;
  const auto strength = spots.colours.abs().amax(1);
  const auto kept = torch::nonzero(strength > 0.02).squeeze(1);
  const auto most = std::min(kept.size(0) / 2, kMostSpots - kept.size(0));
  const auto split = kept.index_select(0, std::get<1>(pull.index_select(0, kept).topk(most)));

  // The second halves are new rows, behind all that are kept.
  const auto from = torch::cat({kept, split});
  const auto rows = torch::cat({kept, torch::full_like(split, -1)});
  auto places = spots.places.index_select(0, from);
  auto widths = spots.widths.index_select(0, from);
  auto colours = spots.colours.index_select(0, from);
  const auto is_half = torch::isin(from, split);
  widths.sub_(is_half * std::log(1.6));
  const auto step = widths.narrow(0, kept.size(0), most).exp().unsqueeze(1);
  places.narrow(0, kept.size(0), most).add_(step * torch::randn({most, 2}).to(step.device()));

  spots.replace(optimizer, "places", &Spots::places, places, rows);
  spots.replace(optimizer, "widths", &Spots::widths, widths, rows);
  spots.replace(optimizer, "colours", &Spots::colours, colours, rows);
}

// A disc of stripes on a slope: (P, 2) -> (P, 3).
torch::Tensor picture(const torch::Tensor& pixels) {
  const auto x = pixels.select(1, 0), y = pixels.select(1, 1);
  const auto disc = ((x - 0.5).square() + (y - 0.5).square() < 0.1).to(torch::kFloat);
  const auto stripes = (torch::sin(x * 30) > 0).to(torch::kFloat);
  return torch::stack({disc * stripes, (x + y) / 2, disc}, 1);
}

}  // namespace

int main(int argc, char** argv) {
  const auto [device, dtype] = read_arguments(argc, argv, torch::kBFloat16);
  torch::manual_seed(0);
  const auto line = (torch::arange(32) + 0.5) / 32;
  const auto pixels = torch::cartesian_prod({line, line}).to(device), target = picture(pixels);

  Spots spots(16);
  spots.to(device);
  demi::optim::Adam optimizer(spots.parameters(), demi::optim::AdamOptions(1e-2));
  demi::GradScaler scaler({.enabled = dtype == torch::kHalf});
  demi::EMA average(spots, 0.98);

  double before_growing = 0, last = 0;
  auto pull = torch::zeros({16}, device);
  for (int step = 1; step <= 800; ++step) {
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      const demi::Autocast region(device.type(), dtype);
      loss = torch::mse_loss(spots.forward(pixels), target);
    }
    scaler.scale(loss).backward();
    scaler.unscale_(optimizer);
    pull += spots.places.grad().norm(2, 1).nan_to_num(0, 0, 0);  // of a step that is skipped
    average.update(scaler.step(optimizer));
    scaler.update();
    last = loss.item<double>();
    if (step % 100 != 0 || step > 500) continue;
    if (step == 100) before_growing = last;
    std::printf("step %d: %lld spots, loss %.5f\n", step,
                static_cast<long long>(spots.places.size(0)), last);
    prune_and_split(spots, optimizer, pull);
    pull = torch::zeros({spots.places.size(0)}, device);
  }
  const torch::NoGradGuard no_grad;
  const demi::EMA::InPlace averages(average);
  const double of_average = torch::mse_loss(spots.forward(pixels), target).item<double>();
  std::printf("%lld spots, loss %.5f, of the average %.5f, %lld steps counted\n",
              static_cast<long long>(spots.places.size(0)), last, of_average,
              static_cast<long long>(optimizer.steps_taken()));
  return last < before_growing / 3 && of_average < before_growing / 3 &&
                 optimizer.steps_taken() > 780
             ? EXIT_SUCCESS
             : EXIT_FAILURE;
}
