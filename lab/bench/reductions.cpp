#include "lab/bench/reductions.h"

#include <torch/types.h>

#include <vector>

#include "demi/autocast/autocast.h"
#include "lab/bench/timing.h"

namespace demi::bench {
namespace {

struct Block {
  at::Tensor query, key, value, out;  // (128, 128) each
  std::vector<at::Tensor> parameters() const { return {query, key, value, out}; }

  at::Tensor forward(const at::Tensor& x) const {  // (batch, tokens, width)
    const auto normed = torch::layer_norm(x, {x.size(2)});
    const auto scores = normed.matmul(query).bmm(normed.matmul(key).transpose(1, 2)) / 11.3;
    const auto mixed = torch::softmax(scores, 2).bmm(normed.matmul(value));
    return torch::layer_norm(mixed.matmul(out), {x.size(2)}).cumsum(1);
  }
};

Block random_block() {
  const auto matrix = [] { return (torch::randn({128, 128}) / 11.3).set_requires_grad(true); };
  return {matrix(), matrix(), matrix(), matrix()};
}

double error_of(const at::Tensor& got, const at::Tensor& exact) {
  return ((got.to(torch::kDouble) - exact).norm() / exact.norm()).item<double>();
}

at::Tensor pass(const Block& block, const at::Tensor& x, const OpPolicy& policy) {
  at::Tensor output;
  {
    const Autocast region(torch::kCPU,
                          demi::AutocastOptions{.dtype = torch::kBFloat16, .policy = policy});
    output = block.forward(x);
  }
  output.to(torch::kFloat).sum().backward();
  return output;
}

void forget_gradients(const Block& block) {
  for (const auto& p : block.parameters()) p.mutable_grad() = at::Tensor();
}

}  // namespace

ReductionsReport measure_fp32_reductions(int rounds) {
  torch::manual_seed(1);
  const Block block = random_block();
  const auto x = torch::randn({8, 64, 128});
  const auto wide = [](const at::Tensor& t) { return t.detach().to(torch::kDouble); };
  const Block exact{wide(block.query), wide(block.key), wide(block.value), wide(block.out)};
  const auto truth = exact.forward(wide(x));
  at::Tensor by_default, by_policy;
  const auto forget = [&] { forget_gradients(block); };
  const std::vector<Times> times =
      take_turns(c10::kCPU, /*warmup=*/0, rounds,
                 {{.work = [&] { by_default = pass(block, x, OpPolicy()); }, .before = forget},
                  {.work = [&] { by_policy = pass(block, x, OpPolicy::named("fp32_reductions")); },
                   .before = forget}});
  return {.default_ms = times[0].least(),
          .policy_ms = times[1].least(),
          .default_error = error_of(by_default, truth),
          .policy_error = error_of(by_policy, truth)};
}

}  // namespace demi::bench
