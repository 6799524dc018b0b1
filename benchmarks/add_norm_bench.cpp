// demi::add_layer_norm and demi::add_rms_norm beside LibTorch's operators, forward and backward, in
// the same run.
//
//   add_norm_bench [ROUNDS]      default: 15
//
// Results and gradients are compared first. Rounds take turns; shown is the least time. Memory is
// kept, as the program keeps it.
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <string>

#include "benchmarks/beside_libtorch.h"
#include "demi/add_norm/add_norm.h"

namespace {

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
    beside_libtorch::clear_gradients({&x, &add, &weight, &bias});
    const demi::SumAndNorm result = f();
    torch::autograd::backward({result.sum, result.norm}, {of_sum, of_norm});
  }
  bool agrees() const {
    const double bound = dtype == at::kFloat ? 1e-5 : 1e-2;
    using beside_libtorch::apart;
    run([&] { return libtorchs(); });
    const at::Tensor expected = x.grad().clone(), of_weight = weight.grad().clone();
    run([&] { return demis(); });
    return apart(x.grad(), expected) < bound && apart(weight.grad(), of_weight) < bound &&
           apart(demis().norm, libtorchs().norm) < bound;
  }
};

bool measure(const Case& of, at::ScalarType dtype, bool centered, int rounds) {
  torch::manual_seed(0);
  const std::string name =
      c10::str(of.of, centered ? ", layer_norm, " : ", rms_norm, ", c10::toString(dtype));
  return beside_libtorch::measure(name.c_str(), Work(of, dtype, centered), rounds);
}

bool measure_all(int rounds) {
  bool all = true;
  for (const bool centered : {true, false})
    for (const auto dtype : {at::kFloat, at::kBFloat16})
      for (const Case& of : kCases) all = measure(of, dtype, centered, rounds) && all;
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  return beside_libtorch::run(argc, argv, "add_norm_bench", measure_all);
}
