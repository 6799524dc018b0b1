// demi's GELU by tanh beside LibTorch's, forward and backward, in the same run.
//
//   gelu_bench [ELEMENTS ROUNDS]      default: 393216 21 (12 x 64 tokens of width 512)
//
// Results and gradients are compared first. Rounds take turns; shown is the least time.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>

#include "demi/activation/gelu.h"
#include "demi/core/instruction_set.h"

namespace {

using Clock = std::chrono::steady_clock;
using Function = std::function<at::Tensor(const at::Tensor&)>;

at::Tensor demis(const at::Tensor& x) { return demi::gelu(x, "tanh"); }
at::Tensor libtorchs(const at::Tensor& x) { return at::gelu(x, "tanh"); }

struct Work {
  at::Tensor x, gradient;

  void run(const Function& f) const {
    x.mutable_grad().reset();
    f(x).backward(gradient);
  }
};

double milliseconds(const Work& work, const Function& f) {
  const auto start = Clock::now();
  work.run(f);
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

bool agrees(const Work& work) {
  const double bound = work.x.scalar_type() == at::kFloat ? 1e-5 : 1e-2;
  work.run(libtorchs);
  const at::Tensor expected = work.x.grad().clone();
  work.run(demis);
  const auto apart = [](const at::Tensor& a, const at::Tensor& b) {
    return ((a - b).to(at::kFloat).norm() / b.to(at::kFloat).norm()).item<double>();
  };
  return apart(work.x.grad(), expected) < bound && apart(demis(work.x), libtorchs(work.x)) < bound;
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t elements = argc > 1 ? std::atoll(argv[1]) : 393216;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 21;
  if (elements < 1 || rounds < 1) {
    std::fprintf(stderr, "gelu_bench [ELEMENTS ROUNDS], each 1 or more\n");
    return 2;
  }
  std::printf("%lld elements, %d threads, %s; ms of forward and backward, the least of %d\n",
              static_cast<long long>(elements), at::get_num_threads(),
              demi::processor_name().c_str(), rounds);
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    torch::manual_seed(0);
    const Work work{at::randn({elements}).mul(2).to(dtype).requires_grad_(),
                    at::randn({elements}).to(dtype)};
    if (!agrees(work)) {
      std::printf("%s differs from LibTorch's: not timed\n", c10::toString(dtype));
      return 1;
    }
    double least = std::numeric_limits<double>::infinity(), least_of_libtorch = least;
    for (int i = 0; i < rounds; ++i) {
      least_of_libtorch = std::min(least_of_libtorch, milliseconds(work, libtorchs));
      least = std::min(least, milliseconds(work, demis));
    }
    std::printf("%-9s LibTorch %7.3f  demi %7.3f  %.2f x\n", c10::toString(dtype),
                least_of_libtorch, least, least_of_libtorch / least);
  }
  return 0;
}
