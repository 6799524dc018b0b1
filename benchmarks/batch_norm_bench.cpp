// demi::batch_norm_relu beside LibTorch's operators, forward and backward, in the same run.
//
//   batch_norm_bench [ROUNDS]      default: 15
//
// Results and gradients are compared first. Rounds take turns; shown is the least time. Memory is
// kept, as the program keeps it.
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <string>

#include "benchmarks/beside_libtorch.h"
#include "demi/batch_norm/batch_norm.h"

namespace {

using Function = std::function<at::Tensor()>;

/// A layer of a network that the recipes train.
struct Case {
  const char* of;
  std::int64_t images, channels, size;
  bool adds;
  demi::MaxPooling pool;
};
const demi::MaxPooling kTwoByTwo{{2, 2}, {2, 2}, {0, 0}}, kStem{{3, 3}, {2, 2}, {1, 1}};
const Case kCases[] = {{"fashion-cnn, layer 1", 256, 32, 28, false, {}},
                       {"fashion-cnn, layer 2", 256, 32, 28, false, kTwoByTwo},
                       {"fashion-cnn, layer 4", 256, 64, 14, false, kTwoByTwo},
                       {"fashion-cnn, layer 5", 256, 128, 7, false, {}},
                       {"ResNet-50 (CIFAR), stage 1", 32, 256, 32, true, {}},
                       {"ResNet-50 (CIFAR), stage 4", 32, 2048, 4, true, {}},
                       {"ResNet-50, stem", 32, 64, 112, false, kStem},
                       {"a residual block, pooled", 64, 128, 32, true, kTwoByTwo}};

struct Work {
  at::Tensor x, add, gradient, weight, bias, mean, variance;
  demi::BatchNormRelu options;

  Work(const Case& of, at::ScalarType dtype, at::MemoryFormat format) {
    const auto pictures = [&](const at::Tensor& drawn) {
      return drawn.to(dtype).contiguous(format);
    };
    const auto input = [&] {
      return pictures(at::randn({of.images, of.channels, of.size, of.size})).requires_grad_();
    };
    x = input();
    if (of.adds) add = input();
    weight = at::ones({of.channels}).requires_grad_();
    bias = at::zeros({of.channels}).requires_grad_();
    mean = at::zeros({of.channels});
    variance = at::ones({of.channels});
    options = {.add = add, .pool = of.pool};
    gradient = pictures(at::randn_like(libtorchs().detach()));
  }

  at::Tensor demis() const {
    return demi::batch_norm_relu(x, weight, bias, mean, variance, options);
  }
  /// As a network writes it: in place.
  at::Tensor libtorchs() const {
    at::Tensor y = at::batch_norm(x, weight, bias, mean, variance, true, 0.1, 1e-5, false);
    if (add.defined()) y = y.add_(add);
    y = y.relu_();
    const demi::MaxPooling& pool = options.pool;
    return pool == demi::MaxPooling{} ? y : at::max_pool2d(y, pool.size, pool.stride, pool.padding);
  }
  void run(const Function& f) const {
    beside_libtorch::clear_gradients({&x, &add, &weight, &bias});
    f().backward(gradient);
  }
  bool agrees() const {
    // A value beside 0 that one of them rounds to 0 has no gradient there.
    const double bound = x.scalar_type() == at::kFloat ? 2e-3 : 6e-2;
    using beside_libtorch::apart;
    run([&] { return libtorchs(); });
    const at::Tensor expected = x.grad().clone();
    run([&] { return demis(); });
    return apart(x.grad(), expected) < bound && apart(demis(), libtorchs()) < bound;
  }
};

bool measure(const Case& of, at::ScalarType dtype, at::MemoryFormat format, int rounds) {
  torch::manual_seed(0);
  const std::string name = c10::str(
      of.of, format == at::MemoryFormat::ChannelsLast ? ", channels_last, " : ", contiguous, ",
      c10::toString(dtype));
  return beside_libtorch::measure(name.c_str(), Work(of, dtype, format), rounds);
}

bool measure_all(int rounds) {
  bool all = true;
  for (const auto format : {at::MemoryFormat::ChannelsLast, at::MemoryFormat::Contiguous})
    for (const auto dtype : {at::kFloat, at::kBFloat16})
      for (const Case& of : kCases) all = measure(of, dtype, format, rounds) && all;
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  return beside_libtorch::run(argc, argv, "batch_norm_bench", measure_all);
}
