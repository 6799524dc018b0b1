// Inference in mixed precision, two ways with the same bits: the FP32 model in a region, and the
// model converted once to 16 bits, normalisation kept in FP32, which is half as large and what one
// would ship.
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>

#include "demi/demi.h"
#include "examples/arguments.h"

namespace {

torch::nn::Sequential make_model() {
  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(16, 64), torch::nn::BatchNorm1d(64),
                              torch::nn::ReLU(), torch::nn::Linear(64, 10));
  model->eval();
  return model;
}

int64_t bytes_of(const torch::nn::Sequential& model) {
  int64_t bytes = 0;
  for (const auto& parameter : model->parameters())
    bytes += static_cast<int64_t>(parameter.nbytes());
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  const auto [device, dtype] = read_arguments(argc, argv, torch::kBFloat16);
  auto model = make_model(), shipped = make_model();
  demi::to_precision(*shipped, dtype);
  model->to(device);
  shipped->to(device);

  const auto x = torch::randn({1000, 16}).to(device);
  const torch::NoGradGuard no_grad;
  const auto exact = model->forward(x);
  torch::Tensor mixed, converted;
  {
    demi::Autocast region(device.type(), dtype);
    mixed = model->forward(x);        // 16 bits
    converted = shipped->forward(x);  // likewise; no weight is cast
  }

  const double agree = mixed.argmax(1).eq(exact.argmax(1)).to(torch::kFloat).mean().item<double>();
  std::printf("%lld bytes in FP32, %lld shipped; same class as FP32 in %.1f %% of the rows\n",
              static_cast<long long>(bytes_of(model)), static_cast<long long>(bytes_of(shipped)),
              100 * agree);
  const bool right = mixed.scalar_type() == dtype && torch::equal(mixed, converted) &&
                     agree > 0.97 && bytes_of(shipped) < 0.6 * bytes_of(model);
  return right ? EXIT_SUCCESS : EXIT_FAILURE;
}
