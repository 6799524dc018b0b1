// demi::add_layer_norm and demi::add_rms_norm beside LibTorch's operators, forward and backward, in
// the same run.
//
//   add_norm_bench [ROUNDS]      default: 15
//
// Results and gradients are compared first. Rounds take turns; shown is the least time. Memory is
// kept, as the program keeps it.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>

#include "demi/add_norm/add_norm.h"
#include "demi/backends/backends.h"
#include "demi/core/instruction_set.h"

namespace {

using Clock = std::chrono::steady_clock;
using Function = std::function<demi::SumAndNorm()>;

/// Tokens of a step, and their width.
struct Case {
  const char* of;
  std::int64_t tokens, width;
};
const Case kCases[] = {
    {"gpt-shakespeare", 768, 128}, {"width 768", 4096, 768}, {"width 2048", 2048, 2048}};

struct Work {
  at::Tensor x, add, weight, bias, of_sum, of_norm;
  at::ScalarType dtype;
  bool centered;

  /// The residual stream is FP32; `dtype` is that of branch and normed rows.
  Work(const Case& of, at::ScalarType branch, bool is_layer_norm)
      : dtype(branch), centered(is_layer_norm) {
    const auto rows = [&] { return at::randn({of.tokens, of.width}); };
    x = rows().requires_grad_();
    add = rows().to(dtype).requires_grad_();
    weight = at::ones({of.width}).requires_grad_();
    if (centered) bias = at::zeros({of.width}).requires_grad_();
    of_sum = rows();
    of_norm = rows().to(dtype);
  }

  demi::SumAndNorm demis() const {
    return centered ? demi::add_layer_norm(x, add, weight, bias, {.dtype = dtype})
                    : demi::add_rms_norm(x, add, weight, {.dtype = dtype});
  }
  demi::SumAndNorm libtorchs() const {
    const at::Tensor sum = x + add;
    const at::Tensor norm = centered ? at::layer_norm(sum, {x.size(1)}, weight, bias)
                                     : at::rms_norm(sum, {x.size(1)}, weight, 1e-5);
    return {sum, norm.to(dtype)};
  }
  void run(const Function& f) const {
    for (const at::Tensor* leaf : {&x, &add, &weight, &bias})
      if (leaf->defined()) leaf->mutable_grad().reset();
    const demi::SumAndNorm result = f();
    torch::autograd::backward({result.sum, result.norm}, {of_sum, of_norm});
  }
  bool agrees() const {
    const double bound = dtype == at::kFloat ? 1e-5 : 1e-2;
    const auto apart = [](const at::Tensor& a, const at::Tensor& b) {
      return ((a - b).to(at::kFloat).norm() / b.to(at::kFloat).norm()).item<double>();
    };
    run([&] { return libtorchs(); });
    const at::Tensor expected = x.grad().clone(), of_weight = weight.grad().clone();
    run([&] { return demis(); });
    return apart(x.grad(), expected) < bound && apart(weight.grad(), of_weight) < bound &&
           apart(demis().norm, libtorchs().norm) < bound;
  }
};

double milliseconds(const Work& work, const Function& f) {
  const auto start = Clock::now();
  work.run(f);
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

bool measure(const Case& of, at::ScalarType dtype, bool centered, int rounds) {
  torch::manual_seed(0);
  const Work work(of, dtype, centered);
  const char* const name = centered ? "layer_norm" : "rms_norm";
  if (!work.agrees()) {
    std::printf("%s, %s differs from LibTorch's: not timed\n", of.of, name);
    return false;
  }
  double least = std::numeric_limits<double>::infinity(), least_of_libtorch = least;
  for (int i = 0; i < rounds; ++i) {
    least_of_libtorch =
        std::min(least_of_libtorch, milliseconds(work, [&] { return work.libtorchs(); }));
    least = std::min(least, milliseconds(work, [&] { return work.demis(); }));
  }
  std::printf("%-16s %-11s %-9s LibTorch %7.3f  demi %7.3f  %.2f x\n", of.of, name,
              c10::toString(dtype), least_of_libtorch, least, least_of_libtorch / least);
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  if (rounds < 1) {
    std::fprintf(stderr, "add_norm_bench [ROUNDS], 1 or more\n");
    return 2;
  }
  demi::keep_memory();
  std::printf("%d threads, %s; ms of forward and backward, the least of %d\n",
              at::get_num_threads(), demi::processor_name().c_str(), rounds);
  bool all = true;
  for (const bool centered : {true, false})
    for (const auto dtype : {at::kFloat, at::kBFloat16})
      for (const Case& of : kCases) all = measure(of, dtype, centered, rounds) && all;
  return all ? 0 : 1;
}
