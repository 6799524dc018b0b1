// One rank of benchmarks/distributed.py: a training step on several ranks, its computation alone
// and its communication alone, in turn.
//
//   distributed_bench PRECISION [--layers N] [--width N] [--batch N] [--steps N] [--bucket-kb N]
//
// PRECISION is fp32 or bf16. The model is N layers Linear(width, width) and ReLU without biases,
// the batch that of each rank, the optimizer SGD. What the ranks' gradients become is checked
// before anything is timed. Rank 0 prints one JSON object: medians in milliseconds.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "demi/autocast/autocast.h"
#include "demi/core/error.h"
#include "demi/distributed/distributed_data_parallel.h"
#include "demi/distributed/process_group.h"
#include "demi/optim/sgd.h"

namespace {

using demi::distributed::DistributedDataParallel;
using demi::distributed::ProcessGroup;

struct Options {
  bool bf16 = false;
  std::map<std::string, int64_t> numbers{
      {"--layers", 8}, {"--width", 1024}, {"--batch", 64}, {"--steps", 15}, {"--bucket-kb", 0}};
};

Options options_of(int argc, char** argv) {
  Options options;
  const std::string precision = argc > 1 ? argv[1] : "";
  if (precision != "fp32" && precision != "bf16")
    throw std::runtime_error("the first argument is fp32 or bf16; seen: " + precision);
  options.bf16 = precision == "bf16";
  for (int i = 2; i + 1 < argc; i += 2) {
    const auto known = options.numbers.find(argv[i]);
    if (known == options.numbers.end())
      throw std::runtime_error(std::string("no such option: ") + argv[i]);
    known->second = std::atoll(argv[i + 1]);
  }
  return options;
}

double milliseconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

// The gradients that DistributedDataParallel leaves are the mean of the ranks' own.
void check_gradients(torch::nn::Sequential& model, ProcessGroup& group,
                     DistributedDataParallel& parallel, const std::function<void()>& backward) {
  model->zero_grad();
  std::vector<torch::Tensor> means;
  {
    const auto alone = parallel.no_sync();
    backward();
    for (const auto& p : model->parameters()) means.push_back(p.grad().to(torch::kFloat64));
  }
  model->zero_grad();
  backward();
  const auto parameters = model->parameters();
  for (std::size_t i = 0; i < means.size(); ++i) {
    group.all_reduce(means[i]);
    means[i] /= static_cast<double>(group.world_size());
    const auto gradient = parameters[i].grad();
    const double digit = gradient.scalar_type() == torch::kFloat ? 1e-5 : 1.0 / 64;
    const auto error = (gradient.to(torch::kFloat64) - means[i]).abs().max().item<double>();
    if (!(error <= digit * means[i].abs().max().item<double>()))
      throw std::runtime_error("the gradients are not the ranks' mean");
  }
}

void run(const Options& options) {
  const int64_t layers = options.numbers.at("--layers"), width = options.numbers.at("--width");
  ProcessGroup group;
  if (group.world_size() == 1) throw std::runtime_error("one rank sends nothing: start several");
  torch::manual_seed(0);
  torch::nn::Sequential model;
  for (int64_t i = 0; i < layers; ++i) {
    model->push_back(torch::nn::Linear(torch::nn::LinearOptions(width, width).bias(false)));
    model->push_back(torch::nn::ReLU());
  }
  demi::distributed::DistributedOptions settings;
  if (const int64_t kb = options.numbers.at("--bucket-kb"); kb > 0)
    settings.bucket_bytes = settings.first_bucket_bytes = kb * 1024;
  DistributedDataParallel parallel(*model, group, settings);
  demi::optim::SGD optimizer(model->parameters(), demi::optim::SGDOptions(1e-4));
  torch::manual_seed(1 + group.rank());
  const auto input = torch::randn({options.numbers.at("--batch"), width});
  const auto target = torch::randn_like(input);

  const auto backward = [&] {
    torch::Tensor loss;
    {
      const demi::Autocast region(torch::kCPU,
                                  {.dtype = torch::kBFloat16, .enabled = options.bf16});
      loss = torch::mse_loss(model->forward(input), target);
    }
    loss.backward();
  };
  const auto step = [&] {
    optimizer.zero_grad();
    backward();
    optimizer.step();
  };
  for (int warm_up = 0; warm_up < 3; ++warm_up) step();
  check_gradients(model, group, parallel, backward);
  const auto reduced = parallel.last_reduced();

  const auto bucket = torch::zeros({reduced.bytes / reduced.buckets / (options.bf16 ? 2 : 4)},
                                   options.bf16 ? torch::kBFloat16 : torch::kFloat);
  std::vector<double> steps, computations, communications;
  for (int64_t i = 0; i < options.numbers.at("--steps"); ++i) {
    group.barrier();
    steps.push_back(milliseconds(step));
    group.barrier();
    computations.push_back(milliseconds([&] {
      const auto alone = parallel.no_sync();
      step();
    }));
    group.barrier();
    communications.push_back(milliseconds([&] {
      for (int b = 0; b < reduced.buckets; ++b) group.all_reduce(bucket);
    }));
    // Steps without communication take the ranks apart.
    for (const auto& p : model->parameters()) group.broadcast(p.detach());
  }
  if (group.rank() == 0)
    std::printf(
        "{\"ranks\": %d, \"parameters\": %lld, \"bytes\": %lld, \"buckets\": %d, \"step_ms\": "
        "%.3f, "
        "\"compute_ms\": %.3f, \"communication_ms\": %.3f}\n",
        group.world_size(), static_cast<long long>(layers * width * width),
        static_cast<long long>(reduced.bytes), reduced.buckets, median(steps), median(computations),
        median(communications));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(options_of(argc, argv));
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return EXIT_FAILURE;
  }
}
