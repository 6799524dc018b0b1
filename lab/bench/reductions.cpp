#include "lab/bench/reductions.h"

#include <torch/types.h>

#include <algorithm>
#include <chrono>

#include "demi/autocast/autocast.h"

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

double milliseconds(const Block& block, const at::Tensor& x, const OpPolicy& policy,
                    at::Tensor& output) {
  const auto start = std::chrono::steady_clock::now();
  {
    const Autocast region(torch::kCPU,
                          ::demi::AutocastOptions{.dtype = torch::kBFloat16, .policy = policy});
    output = block.forward(x);
  }
  output.to(torch::kFloat).sum().backward();
  const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - start;
  for (const auto& p : block.parameters()) p.mutable_grad() = at::Tensor();
  return taken.count();
}

}  // namespace

ReductionsReport measure_fp32_reductions(int rounds) {
  torch::manual_seed(1);
  const Block block = random_block();
  const auto x = torch::randn({8, 64, 128});
  const auto wide = [](const at::Tensor& t) { return t.detach().to(torch::kDouble); };
  const Block exact{wide(block.query), wide(block.key), wide(block.value), wide(block.out)};
  const auto truth = exact.forward(wide(x));
  ReductionsReport report{1e9, 1e9, 0, 0};
  at::Tensor by_default, by_policy;
  for (int round = 0; round < rounds; ++round) {
    report.default_ms = std::min(report.default_ms, milliseconds(block, x, OpPolicy(), by_default));
    report.policy_ms = std::min(
        report.policy_ms, milliseconds(block, x, OpPolicy::named("fp32_reductions"), by_policy));
  }
  report.default_error = error_of(by_default, truth);
  report.policy_error = error_of(by_policy, truth);
  return report;
}

}  // namespace demi::bench
