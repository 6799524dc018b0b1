// One rank of tests/distributed_test.py: the averaged gradients of a small network, as a
// safetensors file. The numbers are those that the script makes: eighths, so that they are exact
// everywhere.
//
//     distributed_partner OUTPUT BATCH
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "demi/checkpoint/safetensors.h"
#include "demi/core/error.h"
#include "demi/distributed/distributed_data_parallel.h"
#include "demi/distributed/process_group.h"

namespace {

torch::Tensor numbers(torch::IntArrayRef sizes, std::int64_t seed) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  return ((torch::arange(count) * 37 + seed * 11).remainder(17) - 8).to(torch::kFloat).view(sizes) /
         8;
}

int run(const std::string& output, std::int64_t batch) {
  demi::distributed::ProcessGroup group;
  torch::nn::Sequential model(torch::nn::Linear(20, 30), torch::nn::Tanh(),
                              torch::nn::Linear(30, 30), torch::nn::Tanh(),
                              torch::nn::Linear(30, 10));
  {
    const torch::NoGradGuard no_grad;
    std::int64_t seed = 0;
    for (auto& p : model->parameters()) p.copy_(numbers(p.sizes(), ++seed) / 4);
  }
  demi::distributed::DistributedOptions options;
  options.first_bucket_bytes = options.bucket_bytes = 1000;
  const demi::distributed::DistributedDataParallel parallel(*model, group, options);
  for (int step = 0; step < 2; ++step) {
    model->zero_grad();
    const auto inputs = numbers({batch, 20}, 100 + group.rank());
    const auto targets = numbers({batch, 10}, 200 + group.rank());
    torch::mse_loss(model->forward(inputs), targets).backward();
  }
  std::map<std::string, torch::Tensor> gradients;
  for (const auto& p : model->named_parameters()) gradients[p.key()] = p.value().grad();
  demi::checkpoint::save_safetensors(output + "." + std::to_string(group.rank()), gradients);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: distributed_partner OUTPUT BATCH\n");
    return 2;
  }
  try {
    return run(argv[1], std::stoi(argv[2]));
  } catch (const demi::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 4;
  }
}
