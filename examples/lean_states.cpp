// Moments in fewer bytes: AdamW with its moments in fp32, bf16 and 8 bits. The states of the
// embedding stay in fp32 (with_states_by_rule). The run in 8 bits is saved, and goes on in fp32.
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "demi/demi.h"
#include "examples/arguments.h"

namespace {

using demi::optim::Moments;

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

  Run(torch::Device device, Moments moments)
      : optimizer((net.to(device),
                   demi::optim::with_states_by_rule(net, demi::optim::AdamWOptions(3e-3))),
                  {}, {.moments = moments, .rounding_seed = 1}) {}

  // Returns the last loss.
  double train(const Arguments& on, int first, int last) {
    double seen = 0;
    for (int step = first; step < last; ++step) {
      const auto at = torch::arange(64, torch::TensorOptions(on.device).dtype(torch::kLong));
      const auto other = (at * (2 * step + 1) + step).remainder(64);
      optimizer.zero_grad();
      torch::Tensor loss;
      {
        const demi::Autocast region(on.device.type(), {.dtype = on.dtype});
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
  const std::map<std::string, Moments> forms{
      {"fp32", Moments::fp32}, {"bf16", Moments::bf16}, {"int8", Moments::int8}};
  std::map<std::string, double> bytes;
  bool is_as_it_must = true;
  for (const auto& [name, moments] : forms) {
    torch::manual_seed(0);
    Run run(on.device, moments);
    const double loss = run.train(on, 0, 400);
    bytes[name] = run.state_bytes();
    std::printf("moments in %s: %.0f bytes, loss %.5f\n", name.c_str(), bytes[name], loss);
    is_as_it_must &= loss < 0.01;

    Run resumed(on.device, Moments::fp32);
    for (std::size_t i = 0; i < run.net.parameters().size(); ++i)
      resumed.net.parameters()[i].data().copy_(run.net.parameters()[i]);
    resumed.optimizer.load_state_tensors(run.optimizer.state_tensors());
    is_as_it_must &= resumed.train(on, 400, 500) < 0.01;
  }
  is_as_it_must &= bytes["bf16"] < 0.7 * bytes["fp32"] && bytes["int8"] < 0.55 * bytes["fp32"];
  return is_as_it_must ? EXIT_SUCCESS : EXIT_FAILURE;
}
