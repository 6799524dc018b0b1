// The first lines of mixed precision: an ordinary loop, the same in fp16, the same in bf16. Lines
// marked with a star differ from FP32. examples/first_lines.py is the same in Python, with the same
// weights and data, so the two print the same losses.
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "demi/demi.h"
#include "examples/arguments.h"

namespace {

using torch::nn::functional::cross_entropy;
using Batches = std::vector<std::pair<torch::Tensor, torch::Tensor>>;

torch::Tensor waves(torch::IntArrayRef shape, double phase) {
  const auto count = c10::multiply_integers(shape);
  return torch::sin(torch::arange(count, torch::kFloat64) * 0.7 + phase)
      .to(torch::kFloat)
      .view(shape);
}

torch::nn::Sequential make_model(torch::Device device) {
  torch::nn::Sequential model(torch::nn::Linear(16, 32), torch::nn::ReLU(),
                              torch::nn::Linear(32, 4));
  const torch::NoGradGuard no_grad;
  double phase = 0;
  for (auto& parameter : model->parameters())
    parameter.copy_(waves(parameter.sizes(), phase += 1) * 0.3);
  model->to(device);
  return model;
}

Batches make_batches(torch::Device device) {
  Batches batches;
  for (int step = 0; step < 60; ++step) {
    const auto x = waves({64, 16}, 10 + step);
    batches.emplace_back(x.to(device), x.slice(1, 0, 4).argmax(1).to(device));
  }
  return batches;
}

double loss_of(torch::nn::Sequential& model, const Batches& batches) {
  const torch::NoGradGuard no_grad;
  double sum = 0;
  for (const auto& [x, y] : batches) sum += cross_entropy(model->forward(x), y).item<double>();
  return sum / static_cast<double>(batches.size());
}

void train_fp32(torch::nn::Sequential& model, const Batches& batches) {
  torch::optim::SGD optimizer(model->parameters(), 0.1);

  for (const auto& [x, y] : batches) {
    optimizer.zero_grad();
    auto loss = cross_entropy(model->forward(x), y);
    loss.backward();
    optimizer.step();
  }
}

void train_fp16(torch::nn::Sequential& model, const Batches& batches, torch::Device device) {
  demi::optim::SGD optimizer(model->parameters(), 0.1);  // *
  demi::GradScaler scaler;                               // *

  for (const auto& [x, y] : batches) {
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      demi::Autocast region(device.type(), torch::kHalf);  // *
      loss = cross_entropy(model->forward(x), y);
    }
    scaler.scale(loss).backward();  // *
    scaler.step(optimizer);         // *
    scaler.update();                // *
  }
}

void train_bf16(torch::nn::Sequential& model, const Batches& batches, torch::Device device) {
  demi::optim::SGD optimizer(model->parameters(), 0.1);  // *

  for (const auto& [x, y] : batches) {
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      demi::Autocast region(device.type(), torch::kBFloat16);  // *
      loss = cross_entropy(model->forward(x), y);
    }
    loss.backward();
    optimizer.step();
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto [device, dtype] = read_arguments(argc, argv, torch::kBFloat16);
  const Batches batches = make_batches(device);
  auto fp32 = make_model(device), mixed = make_model(device);
  const double before = loss_of(fp32, batches);
  train_fp32(fp32, batches);
  if (dtype == torch::kHalf)
    train_fp16(mixed, batches, device);
  else
    train_bf16(mixed, batches, device);
  const double of_fp32 = loss_of(fp32, batches), of_mixed = loss_of(mixed, batches);
  std::printf("before %.4f\nfp32   %.4f\nmixed  %.4f\n", before, of_fp32, of_mixed);
  const bool right = of_fp32 < before / 2 && std::fabs(of_mixed - of_fp32) < 0.05 * before;
  return right ? EXIT_SUCCESS : EXIT_FAILURE;
}
