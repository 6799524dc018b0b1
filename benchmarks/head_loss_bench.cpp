// Head and loss by pieces beside linear and cross_entropy, forward and backward, in the same run.
//
//   head_loss_bench [ROWS WIDTH CLASSES ROUNDS]      default: 1024 768 50257 5
//
// Loss and gradients are compared first. Rounds take turns; shown are the minimum and the median,
// and the peak of tensors beyond inputs and gradients, as a share of the FP32 logits.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "demi/autocast/autocast.h"
#include "demi/core/instruction_set.h"
#include "demi/nn/linear_cross_entropy.h"
#include "demi/profile/memory.h"

namespace {

using Clock = std::chrono::steady_clock;

struct Work {
  at::Tensor input, weight, target;
  bool mixed;

  at::Tensor loss(bool by_pieces) const {
    demi::Autocast region(torch::kCPU, {.dtype = torch::kBFloat16, .enabled = mixed});
    if (by_pieces) return demi::linear_cross_entropy(input, weight, target);
    return at::cross_entropy_loss(at::linear(input, weight), target);
  }
  void run(bool by_pieces) const {
    input.mutable_grad().reset();
    weight.mutable_grad().reset();
    loss(by_pieces).backward();
  }
};

double relative(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

bool agrees(const Work& work) {
  const double bound = work.mixed ? 3e-2 : 1e-4;
  work.run(false);
  const at::Tensor of_input = work.input.grad().clone(), of_weight = work.weight.grad().clone();
  work.run(true);
  const double input = relative(work.input.grad(), of_input),
               weight = relative(work.weight.grad(), of_weight);
  if (input < bound && weight < bound) return true;
  std::printf("gradients differ by %.2g and %.2g: not timed\n", input, weight);
  return false;
}

struct Figures {
  std::vector<double> seconds = {};
  double share = 0;  // of the FP32 logits
};

void measure(const Work& work, bool by_pieces, Figures& figures) {
  const c10::Device cpu(c10::kCPU);
  work.input.mutable_grad().reset();
  work.weight.mutable_grad().reset();
  const auto before = demi::profile::memory_use(cpu).current_bytes;
  demi::profile::reset_peak_memory(cpu);
  const auto start = Clock::now();
  work.run(by_pieces);
  figures.seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  const auto gradients = std::int64_t(work.input.grad().nbytes() + work.weight.grad().nbytes());
  figures.share = double(demi::profile::memory_use(cpu).peak_bytes - before - gradients) /
                  double(work.target.numel() * work.weight.size(0) * 4);
}

void show(const char* name, Figures figures) {
  std::sort(figures.seconds.begin(), figures.seconds.end());
  std::printf("%-14s %9.1f %9.1f %12.1f%%\n", name, figures.seconds.front() * 1e3,
              figures.seconds[figures.seconds.size() / 2] * 1e3, 100 * figures.share);
}

bool bench(const Work& work, std::int64_t rounds) {
  if (!agrees(work)) return false;
  Figures plain, pieces;
  for (std::int64_t round = 0; round < rounds; ++round) {
    measure(work, false, plain);
    measure(work, true, pieces);
  }
  const std::string dtype = work.mixed ? "bf16" : "fp32";
  show((dtype + " plain").c_str(), plain);
  show((dtype + " pieces").c_str(), pieces);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 1 && argc != 5) {
    std::printf("head_loss_bench [ROWS WIDTH CLASSES ROUNDS]\n");
    return 2;
  }
  const auto number = [&](int i, std::int64_t otherwise) {
    return argc == 5 ? std::atoll(argv[i]) : otherwise;
  };
  const std::int64_t rows = number(1, 1024), width = number(2, 768), classes = number(3, 50257),
                     rounds = number(4, 5);
  if (rows < 1 || width < 1 || classes < 1 || rounds < 1) {
    std::printf("rows, width, classes and rounds must be 1 or more\n");
    return 2;
  }
  demi::profile::count_cpu_memory();
  torch::manual_seed(1);
  Work work{.input = torch::randn({rows, width}).requires_grad_(),
            .weight = (torch::randn({classes, width}) * 0.02).requires_grad_(),
            .target = torch::randint(classes, {rows}, torch::kLong),
            .mixed = false};
  std::printf("%s, %s; %d threads\n%-14s %9s %9s %13s\n", demi::processor_name().c_str(),
              demi::describe(demi::instruction_set()).c_str(), at::get_num_threads(),
              "head and loss", "ms min", "ms med", "beyond");
  if (!bench(work, rounds)) return 1;
  work.mixed = true;
  if (!bench(work, rounds)) return 1;
  std::printf("again: head_loss_bench %lld %lld %lld %lld\n", static_cast<long long>(rows),
              static_cast<long long>(width), static_cast<long long>(classes),
              static_cast<long long>(rounds));
}
