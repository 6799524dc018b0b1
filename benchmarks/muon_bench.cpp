// muon_bench [gpt2|resnet50] [bf16|fp32|automatic] [one|batched] [ROUNDS]: the time of a step of
// demi's Muon over the hidden weights of GPT-2 (124 M) or of ResNet-50, FP32 with 16-bit gradients,
// as benchmarks/peers/muon_step.py times the peers'. ResNet-50 is stepped as MuSGD. It is checked
// first: a matrix of the last step has singular values near 1. Prints one line.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "demi/demi.h"

namespace {

using Shapes = std::vector<std::vector<int64_t>>;

Shapes of_gpt2() {
  Shapes all;
  for (int block = 0; block < 12; ++block)
    for (const auto& [rows, columns] :
         {std::pair<int64_t, int64_t>{2304, 768}, {768, 768}, {3072, 768}, {768, 3072}})
      all.push_back({rows, columns});
  return all;
}

Shapes of_resnet50() {
  Shapes all{{64, 3, 7, 7}};
  int64_t in = 64, width = 64;
  for (const int blocks : {3, 4, 6, 3}) {
    for (int block = 0; block < blocks; ++block) {
      all.push_back({width, in, 1, 1});
      all.push_back({width, width, 3, 3});
      all.push_back({4 * width, width, 1, 1});
      if (block == 0) all.push_back({4 * width, in, 1, 1});
      in = 4 * width;
    }
    width *= 2;
  }
  return all;
}

demi::optim::MatrixProducts products_named(const std::string& name) {
  using demi::optim::MatrixProducts;
  if (name == "bf16") return MatrixProducts::bf16;
  if (name == "fp32") return MatrixProducts::fp32;
  return MatrixProducts::automatic;
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int i, const char* otherwise) {
    return std::string(argc > i ? argv[i] : otherwise);
  };
  const std::string network = argument(1, "gpt2"), products = argument(2, "automatic");
  const bool is_batched = argument(3, "one") == "batched";
  const int rounds = std::atoi(argument(4, "5").c_str());
  const bool is_resnet = network == "resnet50";
  const auto device = torch::cuda::is_available() ? torch::kCUDA : torch::kCPU;
  torch::manual_seed(1);
  std::vector<at::Tensor> weights;
  for (const auto& shape : is_resnet ? of_resnet50() : of_gpt2())
    weights.push_back(torch::randn(shape, device).requires_grad_());
  auto options =
      demi::optim::MuonOptions(0.02).products(products_named(products)).batched(is_batched);
  if (is_resnet) options.momentum(0.9).weight_decay(5e-4).sgd(1.0).muon(0.2);
  demi::optim::Muon muon(weights, options, {.low_precision_grads = true});
  std::vector<double> times;
  for (int round = 0; round <= rounds; ++round) {
    for (const auto& weight : weights)
      weight.mutable_grad() = torch::randn(weight.sizes(), device).to(torch::kBFloat16);
    const at::Tensor before = weights.back().detach().clone();
    if (device == torch::kCUDA) torch::cuda::synchronize();
    const auto start = std::chrono::steady_clock::now();
    muon.step();
    if (device == torch::kCUDA) torch::cuda::synchronize();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    if (round > 0) times.push_back(took.count());
    if (round > 0 || is_resnet) continue;
    const at::Tensor change = (weights.back().detach() - before * (1 - 0.02 * 0.1)) / 0.02;
    const at::Tensor values = at::linalg_svdvals(change);
    if (values.min().item<double>() > 0.4 && values.max().item<double>() < 1.4) continue;
    std::fprintf(stderr, "the step is no orthogonal one\n");
    return 1;
  }
  std::sort(times.begin(), times.end());
  std::printf("demi %s %s %s, %d threads: least %.1f ms, median %.1f ms, most %.1f ms\n",
              network.c_str(), products.c_str(), is_batched ? "batched" : "one by one",
              at::get_num_threads(), times.front(), times[times.size() / 2], times.back());
  return 0;
}
