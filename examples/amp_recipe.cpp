// The AMP recipe: one training loop, one switch. Linear and ReLU on rows from randn, mean squared
// error, SGD: in FP32, then in mixed precision, without a branch. Prints time and memory of both.
//
//     amp_recipe [DEVICE [DTYPE [BATCH_SIZE [WIDTH [LAYERS [BATCHES [EPOCHS]]]]]]]
//
// By default a GPU where there is one, and the device's own 16-bit format. Published sizes:
// amp_recipe cuda fp16 512 4096 3 50 3
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "demi/demi.h"
#include "examples/arguments.h"

namespace {

// Of a test that ends in a second.
struct Sizes {
  int64_t batch_size = 64, width = 256, layers = 3, batches = 10, epochs = 3;
};

torch::nn::Sequential make_model(const Sizes& sizes) {
  torch::manual_seed(0);
  torch::nn::Sequential model;
  for (int64_t layer = 0; layer + 1 < sizes.layers; ++layer) {
    model->push_back(torch::nn::Linear(sizes.width, sizes.width));
    model->push_back(torch::nn::ReLU());
  }
  model->push_back(torch::nn::Linear(sizes.width, sizes.width));
  return model;
}

double train(const Sizes& sizes, const torch::Tensor& data, const torch::Tensor& targets,
             bool use_amp, std::optional<torch::Dtype> dtype) {
  const torch::Device device = data.device();
  auto model = make_model(sizes);
  model->to(device);
  // Nothing here reads .grad, so it may keep its 16 bits.
  demi::optim::SGD optimizer(model->parameters(), demi::optim::SGDOptions(0.001),
                             {.low_precision_grads = true});
  demi::GradScaler scaler(demi::GradScalerOptions{.enabled = use_amp});
  torch::Tensor loss;
  // Of a region that is given none: fp16 on CUDA, bf16 on a CPU.
  const torch::Dtype low = dtype.value_or(device.is_cuda() ? torch::kHalf : torch::kBFloat16);

  demi::profile::ScopedTimer timer(device);
  for (int64_t epoch = 0; epoch < sizes.epochs; ++epoch) {
    for (int64_t i = 0; i < sizes.batches; ++i) {
      {
        demi::Autocast region(device.type(),
                              demi::AutocastOptions{.dtype = dtype, .enabled = use_amp});
        const torch::Tensor output = model->forward(data[i]);
        TORCH_CHECK(output.scalar_type() == (use_amp ? low : torch::kFloat), "linear layers give ",
                    output.scalar_type());
        loss = torch::mse_loss(output, targets[i]);
        TORCH_CHECK(loss.scalar_type() == torch::kFloat, "mse_loss gives ", loss.scalar_type());
      }
      scaler.scale(loss).backward();
      scaler.step(optimizer);
      scaler.update();
      optimizer.zero_grad();
    }
  }
  const demi::profile::Measured measured = timer.stop();
  std::printf("%s\n", use_amp ? "Mixed precision:" : "Default precision:");
  std::printf("Total execution time = %.3f sec\n", measured.seconds);
  std::printf("Max memory used by tensors = %lld bytes\n",
              static_cast<long long>(measured.peak_bytes));
  return loss.item<double>();
}

}  // namespace

int main(int argc, char** argv) {
  demi::keep_memory();  // of large tensors on a CPU
  const torch::Device device = device_named(argc > 1 ? argv[1] : "auto");
  std::optional<torch::Dtype> dtype;  // fp16 on CUDA, bf16 on a CPU
  if (argc > 2) dtype = dtype_named(argv[2]);
  Sizes sizes;
  int64_t* fields[] = {&sizes.batch_size, &sizes.width, &sizes.layers, &sizes.batches,
                       &sizes.epochs};
  for (int i = 3; i < argc && i < 8; ++i) *fields[i - 3] = std::max(1LL, number_named(argv[i]));

  demi::profile::count_cpu_memory();
  torch::manual_seed(1);
  const auto data = torch::randn({sizes.batches, sizes.batch_size, sizes.width}).to(device);
  const auto targets = torch::randn({sizes.batches, sizes.batch_size, sizes.width}).to(device);
  const double fp32 = train(sizes, data, targets, false, dtype);
  const double mixed = train(sizes, data, targets, true, dtype);
  std::printf("last loss: fp32 %.4f, mixed %.4f\n", fp32, mixed);
  return std::fabs(mixed - fp32) < 0.01 * fp32 ? EXIT_SUCCESS : EXIT_FAILURE;
}
