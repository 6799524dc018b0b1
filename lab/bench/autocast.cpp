#include "lab/bench/autocast.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>

#include "demi/autocast/autocast.h"
#include "demi/autocast/op_table.h"
#include "demi/core/error.h"
#include "demi/weights/weights.h"
#include "lab/bench/autocast_step.h"
#include "lab/bench/timing.h"

namespace demi::bench {
namespace {

using Op = std::function<at::Tensor(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b)>;

struct Case {
  std::string name;
  std::vector<std::int64_t> x, w;
  int slower;  // than a matrix product of this size, about
  Op op;
};

std::vector<Case> cases() {
  return {
      {"linear",
       {2, 16},
       {16, 16},
       1,
       [](auto& x, auto& w, auto& b) { return at::linear(x, w, b); }},
      {"addmm", {2, 16}, {16, 16}, 1, [](auto& x, auto& w, auto& b) { return at::addmm(b, x, w); }},
      {"mm", {2, 16}, {16, 16}, 1, [](auto& x, auto& w, auto&) { return at::mm(x, w); }},
      {"matmul", {2, 16}, {16, 16}, 1, [](auto& x, auto& w, auto&) { return at::matmul(x, w); }},
      {"conv2d", {2, 16, 8, 8}, {16, 16, 3, 3}, 10, [](auto& x, auto& w, auto& b) {
         return at::conv2d(x, w, b);
       }}};
}

class OneThread {
 public:
  OneThread() { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before_); }

 private:
  int before_ = at::get_num_threads();
};

// LibTorch's own kernels and cache, by its own setters.
class LibTorchAutocast {
 public:
  LibTorchAutocast() {
    remove_kernels(torch::kCPU);
    at::autocast::set_autocast_enabled(torch::kCPU, true);
    at::autocast::increment_nesting();
  }
  ~LibTorchAutocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(torch::kCPU, false);
    install_kernels(torch::kCPU);
  }
};

void check(const std::string& name, const at::Tensor& plain, const at::Tensor& ours) {
  if (plain.scalar_type() == ours.scalar_type() && plain.equal(ours)) return;
  throw TrainingError({.where = "bench.autocast",
                       .what = "the autocast op is not equal to the plain one",
                       .seen = name});
}

AutocastOp measure(const Case& one, bool with_grad, const AutocastBenchOptions& options) {
  const at::AutoGradMode grad(with_grad);
  const auto x = torch::randn(one.x).to(torch::kBFloat16);
  const auto w = torch::randn(one.w).set_requires_grad(true),
             b = torch::randn({16}).set_requires_grad(true);
  const auto leaf = [](const at::Tensor& t) {
    return t.detach().to(torch::kBFloat16).set_requires_grad(true);
  };
  const auto low_w = leaf(w), low_b = leaf(b);
  const auto plain = [&] { one.op(x, low_w, low_b); };
  const auto cast = [&] { one.op(x, w, b); };
  const int iterations = std::max(1, options.iterations / one.slower);
  const Owned owned({w, b});
  const std::string name = one.name + (with_grad ? "" : " no_grad");
  Times plain_ns, demi_ns, libtorch_ns;
  for (int round = 0; round < options.rounds; ++round) {
    plain_ns.add(nanoseconds(iterations, plain));
    {
      const Autocast region(torch::kCPU, torch::kBFloat16);
      if (round == 0) check(name, one.op(x, low_w, low_b), one.op(x, w, b));
      demi_ns.add(nanoseconds(iterations, cast));
    }
    const LibTorchAutocast theirs;
    libtorch_ns.add(nanoseconds(iterations, cast));
  }
  return {.name = name,
          .plain_ns = plain_ns.least(),
          .demi_ns = demi_ns.least(),
          .libtorch_ns = libtorch_ns.least(),
          .demi_over_plain = demi_ns.least() / plain_ns.least(),
          .libtorch_over_plain = libtorch_ns.least() / plain_ns.least()};
}

}  // namespace

AutocastReport measure_autocast(const AutocastBenchOptions& options) {
  const OneThread one_thread;
  torch::manual_seed(1);
  AutocastReport report{};
  for (const auto& one : cases())
    for (const bool with_grad : {true, false})
      report.ops.push_back(measure(one, with_grad, options));
  measure_step(options, report);
  return report;
}

}  // namespace demi::bench
