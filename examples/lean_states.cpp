// Weights and moments in fewer bytes: a bf16 network, trained by AdamW as FP32 would be, with less
// and less beside its weights. The moments of the embedding stay in fp32 (with_states_by_rule).
// Each run is saved, and goes on with masters and moments in fp32.
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "demi/demi.h"
#include "examples/arguments.h"

namespace {

using demi::optim::Moments;
using demi::optim::WeightMode;

struct Net : torch::nn::Module {
  torch::nn::Embedding rows = register_module("rows", torch::nn::Embedding(64, 64));
  torch::nn::Sequential rest =
      register_module("rest", torch::nn::Sequential(torch::nn::Linear(64, 128), torch::nn::ReLU(),
                                                    torch::nn::Linear(128, 128), torch::nn::ReLU(),
                                                    torch::nn::Linear(128, 1)));
};

// The sum of two numbers of 0 to 63, as a function of their rows.
struct Run {
  Net net;
  demi::optim::AdamW optimizer;

  Run(torch::Device device, WeightMode weights, Moments moments)
      : optimizer((net.to(device), demi::to_precision(net, torch::kBFloat16),
                   demi::optim::with_states_by_rule(net, demi::optim::AdamWOptions(3e-3))),
                  {}, {.moments = moments, .weight_mode = weights, .rounding_seed = 1}) {}

  // Returns the last loss.
  double train(const Arguments& on, int first, int last) {
    double seen = 0;
    for (int step = first; step < last; ++step) {
      const auto at = torch::arange(64, torch::TensorOptions(on.device).dtype(torch::kLong));
      const auto other = (at * (2 * step + 1) + step).remainder(64);
      optimizer.zero_grad();
      torch::Tensor loss;
      {
        const demi::Autocast region(on.device.type(), {.dtype = torch::kBFloat16});
        const auto sum = net.rest->forward(net.rows->forward(at) + net.rows->forward(other));
        loss = torch::mse_loss(sum.to(torch::kFloat),
                               (at + other).to(torch::kFloat).view({-1, 1}) / 64);
      }
      loss.backward();
      optimizer.step();
      seen = loss.item<double>();
    }
    return seen;
  }

  double state_bytes() const {
    double bytes = 0;
    for (const auto& [name, tensor] : optimizer.state_tensors())
      bytes += static_cast<double>(tensor.nbytes());
    return bytes;
  }
};

}  // namespace

int main(int argc, char** argv) {
  const Arguments on = read_arguments(argc, argv, torch::kBFloat16);
  const struct {
    const char* name;
    WeightMode weights;
    Moments moments;
  } runs[] = {{"master, fp32", WeightMode::master, Moments::fp32},
              {"split, bf16", WeightMode::split, Moments::bf16},
              {"split24, int8", WeightMode::split24, Moments::int8},
              {"stochastic, bf16", WeightMode::stochastic, Moments::bf16}};
  double bytes_of_master = 0;
  bool is_as_it_must = true;
  for (const auto& [name, weights, moments] : runs) {
    torch::manual_seed(0);
    Run run(on.device, weights, moments);
    const double loss = run.train(on, 0, 400), bytes = run.state_bytes();
    std::printf("%s: %.0f bytes beside the weights, loss %.5f\n", name, bytes, loss);
    if (weights == WeightMode::master) bytes_of_master = bytes;
    is_as_it_must &=
        loss < 0.01 && (weights == WeightMode::master || bytes < 0.6 * bytes_of_master);

    // What is trained, for a file: fp32 in every mode but stochastic, which keeps 16 bits.
    const auto file = demi::optim::export_fp32(run.net, run.optimizer);
    is_as_it_must &= (file.at("rest.2.weight").scalar_type() == torch::kFloat) ==
                     (weights != WeightMode::stochastic);

    Run resumed(on.device, WeightMode::master, Moments::fp32);
    for (std::size_t i = 0; i < run.net.parameters().size(); ++i)
      resumed.net.parameters()[i].data().copy_(run.net.parameters()[i]);
    resumed.optimizer.load_state_tensors(run.optimizer.state_tensors());
    is_as_it_must &= resumed.train(on, 400, 500) < 0.01;
  }
  return is_as_it_must ? EXIT_SUCCESS : EXIT_FAILURE;
}
