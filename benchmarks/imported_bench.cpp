// An imported network beside the same operations in C++, which are too small to take time: what is
// left is the host's. benchmarks/imported.py makes the file, and times Python in the same run.
//
//   imported_bench FILE.pt2 LAYERS ROUNDS
//
// FILE computes LAYERS times tanh(x * weight + bias) of a (4) vector. Outputs and gradients are
// compared first, bit for bit. Rounds take turns; shown are minimum and median of forward and of
// forward and backward, for one operation the difference of the minima, and the peak of tensors.
#include <torch/torch.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string_view>
#include <system_error>
#include <vector>

#include "demi/core/instruction_set.h"
#include "demi/imported/imported_model.h"
#include "demi/profile/memory.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kOpsOfLayer = 3, kRepeats = 20;

struct Network {
  const char* name;
  std::function<at::Tensor(const at::Tensor&)> forward;
  std::vector<double> inference = {}, training = {};  // us
  std::int64_t peak_bytes = 0;
};

double us_of(const std::function<void()>& run) {
  const auto start = Clock::now();
  for (int i = 0; i < kRepeats; ++i) run();
  return std::chrono::duration<double>(Clock::now() - start).count() * 1e6 / kRepeats;
}

void measure(Network& network, const at::Tensor& input) {
  {
    const at::NoGradGuard no_grad;
    network.inference.push_back(us_of([&] { network.forward(input); }));
  }
  const c10::Device cpu(c10::kCPU);
  const auto before = demi::profile::memory_use(cpu).current_bytes;
  demi::profile::reset_peak_memory(cpu);
  network.training.push_back(us_of([&] { network.forward(input).sum().backward(); }));
  network.peak_bytes = demi::profile::memory_use(cpu).peak_bytes - before;
}

void show(Network& network, const Network& other, int ops) {
  for (auto* times : {&network.inference, &network.training})
    std::sort(times->begin(), times->end());
  const auto median = [](const std::vector<double>& times) { return times[times.size() / 2]; };
  const auto more = [&](const std::vector<double>& mine, const std::vector<double>& theirs) {
    return (mine.front() - *std::min_element(theirs.begin(), theirs.end())) / ops;
  };
  std::printf("%-9s %9.1f %9.1f %9.1f %9.1f %12.3f %12.3f %9lld\n", network.name,
              network.inference.front(), median(network.inference), network.training.front(),
              median(network.training), more(network.inference, other.inference),
              more(network.training, other.training), static_cast<long long>(network.peak_bytes));
}

// 0 for what is no whole number.
int count_in(std::string_view text) {
  int count = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), count);
  return problem == std::errc() && end == text.data() + text.size() ? count : 0;
}

}  // namespace

int main(int argc, char** argv) {
  const int layers = argc == 4 ? count_in(argv[2]) : 0, rounds = argc == 4 ? count_in(argv[3]) : 0;
  if (layers < 1 || rounds < 1) {
    std::printf("imported_bench FILE.pt2 LAYERS ROUNDS\n");
    return 2;
  }
  demi::profile::count_cpu_memory();
  at::set_num_threads(1);
  demi::ImportedModel model(argv[1]);
  const auto weights = model->named_parameters();
  const at::Tensor weight = weights["weight"], bias = weights["bias"];
  Network imported{"imported", [&](const at::Tensor& x) { return model->forward(x); }};
  Network cpp{"C++", [&](at::Tensor x) {
                for (int i = 0; i < layers; ++i) x = at::tanh(at::add(at::mul(x, weight), bias));
                return x;
              }};
  const at::Tensor input = torch::ones({4});
  std::vector<at::Tensor> outputs, gradients;
  for (Network* network : {&imported, &cpp}) {
    outputs.push_back(network->forward(input));
    model->zero_grad();
    outputs.back().sum().backward();
    gradients.push_back(weight.grad().clone());
  }
  if (!outputs[0].equal(outputs[1]) || !gradients[0].equal(gradients[1])) {
    std::printf("outputs or gradients differ: not timed\n");
    return 1;
  }
  for (int round = 0; round < rounds; ++round)
    for (Network* network : {&imported, &cpp}) measure(*network, input);
  const int ops = kOpsOfLayer * layers;
  std::printf("%s, 1 thread; %d operations\n%-9s %9s %9s %9s %9s %12s %12s %9s\n",
              demi::processor_name().c_str(), ops, "us", "forward", "median", "training", "median",
              "more an op", "training", "peak B");
  show(cpp, cpp, ops);
  show(imported, cpp, ops);
}
