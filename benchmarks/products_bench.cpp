// Products and convolutions of 16-bit numbers in a region, forward and backward: demi's, LibTorch's
// (DEMI_KERNELS=aten) and the same in FP32, in turn in one run.
//
//   products_bench [--rounds N] [--threads N]
//
// Results and gradients are compared with FP32's before anything is timed. Shown is the median time
// of the rounds as a Markdown table; where the processor has instructions for the dtype, the first
// two are the same.
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "demi/autocast/autocast.h"
#include "demi/products/through_fp32.h"
#include "demi/weights/weights.h"
#include "lab/bench/timing.h"

namespace {

struct Case {
  std::string name;
  std::vector<at::Tensor> leaves;  // FP32
  std::function<at::Tensor(const std::vector<at::Tensor>&)> op;
};

at::Tensor leaf(at::IntArrayRef sizes, double scale = 1) {
  return (torch::randn(sizes) * scale).set_requires_grad(true);
}

Case linear(std::int64_t rows, std::int64_t in, std::int64_t out) {
  return {
      "linear " + std::to_string(rows) + " x " + std::to_string(in) + " to " + std::to_string(out),
      {leaf({rows, in}), leaf({out, in}, 1 / std::sqrt(double(in))), leaf({out})},
      [](const auto& t) { return at::linear(t[0], t[1], t[2]); }};
}

Case conv2d(std::int64_t batch, std::int64_t in, std::int64_t side, std::int64_t out,
            std::int64_t kernel) {
  const auto last = [](const at::Tensor& t) {
    return t.detach().contiguous(at::MemoryFormat::ChannelsLast).set_requires_grad(true);
  };
  const double scale = 1 / std::sqrt(double(in * kernel * kernel));
  return {"conv2d " + std::to_string(batch) + " x " + std::to_string(in) + " x " +
              std::to_string(side) + "², " + std::to_string(kernel) + "² to " + std::to_string(out),
          {last(leaf({batch, in, side, side})), last(leaf({out, in, kernel, kernel}, scale))},
          [kernel](const auto& t) {
            return at::conv2d(t[0], t[1], {}, 1, static_cast<std::int64_t>(kernel / 2));
          }};
}

std::vector<Case> cases() {
  return {linear(512, 2048, 2048),    linear(64, 1024, 1024),      linear(64, 784, 128),
          linear(8, 1024, 1024),      linear(32, 64, 64),          conv2d(64, 64, 32, 64, 3),
          conv2d(64, 256, 8, 256, 3), conv2d(64, 256, 8, 1024, 1), conv2d(64, 3, 32, 64, 3)};
}

constexpr double kOnceIsEnough = 2000;  // ms; LibTorch's fp16 takes a minute of some

/// Result and gradients, in a region of that dtype; FP32: without one.
std::vector<at::Tensor> step(const Case& one, at::ScalarType dtype) {
  at::Tensor result;
  {
    const demi::Autocast region(
        torch::kCPU, demi::AutocastOptions{.dtype = dtype == at::kFloat ? at::kBFloat16 : dtype,
                                           .enabled = dtype != at::kFloat});
    result = one.op(one.leaves);
  }
  auto all = torch::autograd::grad({result}, one.leaves, {torch::ones_like(result)});
  all.push_back(result.detach());
  return all;
}

/// And back to what the user asked for.
void use_libtorchs(bool yes) {
  static const std::string given = std::getenv("DEMI_KERNELS") ? std::getenv("DEMI_KERNELS") : "";
  setenv("DEMI_KERNELS", yes ? "aten" : given.c_str(), 1);
}

double relative_distance(const std::vector<at::Tensor>& seen,
                         const std::vector<at::Tensor>& exact) {
  double worst = 0;
  for (std::size_t i = 0; i < seen.size(); ++i)
    worst = std::max(worst,
                     ((seen[i].to(at::kFloat) - exact[i]).norm() / exact[i].norm()).item<double>());
  return worst;
}

int option(int count, char** words, const std::string& name, int otherwise) {
  for (int i = 1; i + 1 < count; ++i)
    if (words[i] == name) return std::max(1, std::atoi(words[i + 1]));
  return otherwise;
}

}  // namespace

int main(int count, char** words) {
  const int rounds = option(count, words, "--rounds", 9);
  at::set_num_threads(option(count, words, "--threads", at::get_num_threads()));
  torch::manual_seed(0);
  std::printf(
      "%d threads, median of %d rounds, ms\n\n| op | dtype | FP32 | demi | LibTorch | FP32 / "
      "demi | LibTorch / demi |\n|---|---|---|---|---|---|---|\n",
      at::get_num_threads(), rounds);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const Case& one : cases()) {
      for (const auto& t : one.leaves) demi::weights::own(t);
      const auto exact = step(one, at::kFloat), ours = step(one, dtype);
      const double allowed = dtype == at::kHalf ? 0x1p-10 : 0x1p-7;
      if (const double distance = relative_distance(ours, exact); !(distance < allowed)) {
        std::fprintf(stderr, "%s: %g from FP32, more than %g\n", one.name.c_str(), distance,
                     allowed);
        return 1;
      }
      const auto time_of = [&](at::ScalarType type) {
        return demi::bench::milliseconds(c10::kCPU, [&] { step(one, type); });
      };
      demi::bench::Times fp32, demi, libtorch;
      for (int round = 0; round < rounds; ++round) {
        fp32.add(time_of(at::kFloat));
        demi.add(time_of(dtype));
        if (!libtorch.empty() && libtorch.most() > kOnceIsEnough) continue;
        use_libtorchs(true);
        libtorch.add(time_of(dtype));
        use_libtorchs(false);
      }
      std::printf("| %s | %s | %.3f | %.3f | %.3f | %.2f | %.2f |\n", one.name.c_str(),
                  dtype == at::kHalf ? "fp16" : "bf16", fp32.median(), demi.median(),
                  libtorch.median(), fp32.median() / demi.median(),
                  libtorch.median() / demi.median());
      std::fflush(stdout);
      for (const auto& t : one.leaves) demi::weights::disown(t);
    }
  }
}
