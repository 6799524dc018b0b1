// What a hand-written guard around LibTorch's autocast does, on LibTorch alone: three faults of
// public C++ programs, in numbers, and a guard that mends what a guard can. with_demi.cpp is the
// same with demi; docs/guide/autocast_guard.md explains both. Fails if LibTorch no longer does what
// is printed.
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <stdexcept>

namespace as_written {

class AutocastGuard {
 public:
  explicit AutocastGuard(torch::Dtype dtype) {
    at::autocast::set_autocast_dtype(torch::kCPU, dtype);
    at::autocast::set_autocast_enabled(torch::kCPU, true);
  }
  ~AutocastGuard() { at::autocast::set_autocast_enabled(torch::kCPU, false); }
};

}  // namespace as_written

namespace mended {

class AutocastGuard {
 public:
  explicit AutocastGuard(torch::Dtype dtype)
      : enabled_(at::autocast::is_autocast_enabled(torch::kCPU)),
        dtype_(at::autocast::get_autocast_dtype(torch::kCPU)) {
    at::autocast::set_autocast_dtype(torch::kCPU, dtype);
    at::autocast::set_autocast_enabled(torch::kCPU, true);
    at::autocast::increment_nesting();
  }
  ~AutocastGuard() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(torch::kCPU, enabled_);
    at::autocast::set_autocast_dtype(torch::kCPU, dtype_);
  }
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  bool enabled_;
  torch::Dtype dtype_;
};

}  // namespace mended

namespace {

/// y = w x with w = 1. (A torch::nn::Linear hands its weight on as a view, which is not cached.)
torch::nn::Conv2d one_weight() {
  torch::nn::Conv2d layer(torch::nn::Conv2dOptions(1, 1, 1).bias(false));
  const torch::NoGradGuard no_grad;
  layer->weight.fill_(1);
  return layer;
}

torch::Tensor one() { return torch::ones({1, 1, 1, 1}); }

struct Trained {
  float weight, output;
};

/// Eight steps towards y = 3 for x = 1.
template <class Guard>
Trained train() {
  torch::nn::Conv2d layer = one_weight();
  torch::optim::SGD sgd(layer->parameters(), 0.25);
  torch::Tensor y;
  for (int step = 0; step < 8; ++step) {
    sgd.zero_grad();
    {
      const Guard guard(torch::kBFloat16);
      y = layer->forward(one());
    }
    (y.to(torch::kFloat) - 3).square().sum().backward();
    sgd.step();
  }
  at::autocast::clear_cache();
  return {layer->weight.item<float>(), y.item<float>()};
}

/// Of what is computed in a region, behind another one within it.
template <class Guard>
torch::Dtype dtype_behind_an_inner_region() {
  torch::nn::Conv2d layer = one_weight();
  const Guard outer(torch::kBFloat16);
  { const Guard inner(torch::kHalf); }
  return layer->forward(one()).scalar_type();
}

/// Outside of a region that was switched on by hand, and that an exception left.
torch::Dtype dtype_after_an_exception() {
  torch::nn::Conv2d layer = one_weight();
  try {
    at::autocast::set_autocast_dtype(torch::kCPU, torch::kBFloat16);
    at::autocast::set_autocast_enabled(torch::kCPU, true);
    layer->forward(torch::ones({1, 2, 1, 1}));  // a wrong shape
    at::autocast::set_autocast_enabled(torch::kCPU, false);
  } catch (const std::exception&) {
  }
  const torch::Dtype seen = layer->forward(one()).scalar_type();
  at::autocast::set_autocast_enabled(torch::kCPU, false);
  at::autocast::clear_cache();
  return seen;
}

/// Where that of the output is 1e-8: fp16's least number is 6e-8.
float small_gradient() {
  torch::nn::Conv2d layer = one_weight();
  torch::Tensor y;
  {
    const mended::AutocastGuard guard(torch::kHalf);
    y = layer->forward(one());
  }
  (y.to(torch::kFloat) * 1e-8).sum().backward();
  return layer->weight.grad().item<float>();
}

}  // namespace

int main() {
  const Trained wrong = train<as_written::AutocastGuard>();
  std::printf("after 8 steps towards 3: weight %g, output %g\n", wrong.weight, wrong.output);
  const torch::Dtype inner = dtype_behind_an_inner_region<as_written::AutocastGuard>();
  std::printf("in the outer region, behind an inner one: %s\n", c10::toString(inner));
  const torch::Dtype outside = dtype_after_an_exception();
  std::printf("outside, after an exception in a region: %s\n", c10::toString(outside));
  const float gradient = small_gradient();
  std::printf("gradient of the weight, 1e-08 in truth: %g\n", gradient);

  const Trained right = train<mended::AutocastGuard>();
  std::printf("with a mended guard: weight %.2f, output %.2f\n", right.weight, right.output);
  const torch::Dtype mended = dtype_behind_an_inner_region<mended::AutocastGuard>();
  std::printf("with a mended guard, behind an inner region: %s\n", c10::toString(mended));

  const bool as_said = wrong.weight == 9 && wrong.output == 1 && inner == torch::kFloat &&
                       outside == torch::kBFloat16 && gradient == 0 &&
                       std::abs(right.weight - 3) < 0.02F && mended == torch::kBFloat16;
  return as_said ? 0 : 1;
}
