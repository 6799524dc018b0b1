// Causal attention on a CPU, forward and backward, each path in the same run.
//
//   attention_bench [ROWS HEADS TOKENS SIZE ROUNDS]      default: 2 12 1024 64 5
//
// Results are compared with FP32's first. Rounds take turns; shown are the minimum and the median.
// Products in bf16 run once where the processor has no instructions for them, since they take long.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "demi/attention/attention.h"
#include "demi/core/instruction_set.h"

namespace {

using Clock = std::chrono::steady_clock;

struct Contender {
  const char* name;
  const char* path;  // of DEMI_ATTENTION
  at::ScalarType dtype;
  double dropout;
  bool is_emulated = false;  // without instructions for bf16
  std::vector<double> seconds = {};
};

at::Tensor run(Contender& of, const std::vector<at::Tensor>& numbers) {
  setenv("DEMI_ATTENTION", of.path, 1);
  std::vector<at::Tensor> leaves;
  for (std::size_t i = 0; i < 3; ++i)
    leaves.push_back(numbers[i].to(of.dtype).detach().requires_grad_());
  const at::Tensor g = numbers[3].to(of.dtype);
  const auto start = Clock::now();
  const auto out =
      demi::attention(leaves[0], leaves[1], leaves[2], {.causal = true, .dropout = of.dropout});
  const auto gradients = torch::autograd::grad({out}, leaves, {g});
  of.seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  return of.dropout > 0 ? at::Tensor() : gradients[0].to(at::kFloat);
}

bool agrees(const Contender& of, const at::Tensor& got, const at::Tensor& want) {
  if (!got.defined()) return true;
  const double error = ((got - want).norm() / want.norm()).item<double>();
  if (error < 3e-2) return true;
  std::printf("%s: the gradient of q differs by %.2g\n", of.name, error);
  return false;
}

void show(Contender& of, double base) {
  std::sort(of.seconds.begin(), of.seconds.end());
  std::printf("%-26s %9.1f %9.1f %8.2f x\n", of.name, of.seconds.front() * 1e3,
              of.seconds[of.seconds.size() / 2] * 1e3, of.seconds.front() / base);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 1 && argc != 6) {
    std::printf("attention_bench [ROWS HEADS TOKENS SIZE ROUNDS]\n");
    return 2;
  }
  const auto number = [&](int i, std::int64_t otherwise) {
    return argc == 6 ? std::atoll(argv[i]) : otherwise;
  };
  const std::int64_t n = number(1, 2), h = number(2, 12), t = number(3, 1024), e = number(4, 64),
                     rounds = number(5, 5);
  if (std::min({n, h, t, e, rounds}) < 1) {
    std::printf("all must be 1 or more\n");
    return 2;
  }
  torch::manual_seed(1);
  std::vector<at::Tensor> numbers;
  for (int i = 0; i < 4; ++i) numbers.push_back(torch::randn({n, t, h, e}).transpose(1, 2));
  std::vector<Contender> all{{"fp32 libtorch", "libtorch", torch::kFloat, 0},
                             {"fp32 fused", "fused", torch::kFloat, 0},
                             {"fp32 blocks", "blocks", torch::kFloat, 0},
                             {"bf16 fused", "fused", torch::kBFloat16, 0},
                             {"bf16 blocks", "blocks", torch::kBFloat16, 0},
                             {"bf16 tiles", "tiles", torch::kBFloat16, 0, true},
                             {"bf16 blocks_16_bit", "blocks_16_bit", torch::kBFloat16, 0, true},
                             {"bf16 libtorch", "libtorch", torch::kBFloat16, 0, true},
                             {"fp32 blocks, dropout", "blocks", torch::kFloat, 0.1},
                             {"fp32 libtorch, dropout", "libtorch", torch::kFloat, 0.1}};
  std::printf("%s, %s; %d threads; %ld x %ld x %ld x %ld\n%-26s %9s %9s\n",
              demi::processor_name().c_str(), demi::describe(demi::instruction_set()).c_str(),
              at::get_num_threads(), long(n), long(h), long(t), long(e), "causal attention",
              "ms min", "ms med");
  at::Tensor want;
  for (std::int64_t round = 0; round <= rounds; ++round)
    for (Contender& one : all) {
      const bool is_slow = one.is_emulated && !demi::has_bf16_hardware();
      if (is_slow && round > 0) continue;
      const at::Tensor got = run(one, numbers);
      if (round > 0) continue;
      if (!want.defined()) want = got;
      if (!agrees(one, got, want)) return 1;
      if (!is_slow) one.seconds.clear();
    }
  const double base = *std::min_element(all.front().seconds.begin(), all.front().seconds.end());
  for (Contender& one : all) show(one, base);
  std::printf("rerun: attention_bench %ld %ld %ld %ld %ld\n", long(n), long(h), long(t), long(e),
              long(rounds));
  return 0;
}
