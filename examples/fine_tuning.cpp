// A model trained in Python goes on in C++, in mixed precision: its safetensors file is read, its
// names are mapped to those of the C++ module, its head is replaced by one for another task.
// examples/fine_tuning_model.py made the file. Files of torch.save become safetensors by
// `scripts/demi_checkpoint.py convert`.
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "demi/demi.h"
#include "examples/arguments.h"

namespace {

// Python's encoder; a C++ Sequential names its layers as Python's does: "0.weight".
torch::nn::Sequential make_encoder() {
  return torch::nn::Sequential(torch::nn::Linear(8, 32),
                               torch::nn::LayerNorm(torch::nn::LayerNormOptions({32})),
                               torch::nn::GELU(), torch::nn::Linear(32, 32), torch::nn::GELU());
}

// The tensors whose names begin with `prefix`, under the rest of their names.
demi::checkpoint::NamedTensors part(const demi::checkpoint::NamedTensors& tensors,
                                    const std::string& prefix) {
  demi::checkpoint::NamedTensors found;
  for (const auto& [name, tensor] : tensors)
    if (name.starts_with(prefix)) found[name.substr(prefix.size())] = tensor;
  return found;
}

// Names and shapes must be the module's, or nothing is changed.
void load(torch::nn::Module& module, const demi::checkpoint::NamedTensors& tensors) {
  demi::checkpoint::restore({.model = tensors}, {.models = {&module}, .random = false});
}

// The new task: the sum's sine and its cosine.
torch::Tensor targets_of(const torch::Tensor& x) {
  const auto sum = x.sum(1, true);
  return torch::cat({sum.sin(), sum.cos()}, 1);
}

double train(torch::nn::Sequential& encoder, torch::Device device, torch::Dtype dtype) {
  torch::manual_seed(1);
  torch::nn::Linear head(32, 2);
  encoder->to(device);
  head->to(device);
  std::vector<torch::Tensor> parameters = encoder->parameters();
  for (const auto& parameter : head->parameters()) parameters.push_back(parameter);
  demi::optim::AdamW optimizer(parameters, demi::optim::AdamWOptions(1e-3));
  demi::GradScaler scaler;
  double last = 0;
  for (int step = 0; step < 200; ++step) {
    const auto x = torch::randn({256, 8}).to(device) / 2;
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      demi::Autocast region(device.type(), dtype);
      loss = torch::mse_loss(head->forward(encoder->forward(x)), targets_of(x));
    }
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
    last = loss.item<double>();
  }
  return last;
}

}  // namespace

int main(int argc, char** argv) {
  const auto [device, dtype] = read_arguments(argc, argv, torch::kBFloat16);
  const auto python =
      demi::checkpoint::load_safetensors(DEMI_EXAMPLES "/fine_tuning_model.safetensors").tensors;

  // First as it is: the same output as in Python.
  auto encoder = make_encoder();
  torch::nn::Linear head(32, 1);
  load(*encoder, part(python, "encoder."));
  load(*head, part(python, "head."));
  const auto output = head->forward(encoder->forward(python.at("example.input")));
  const bool same = torch::allclose(output, python.at("example.output"), 1e-4, 1e-5);

  // Then on a new task, beside an encoder that begins anew.
  const double tuned = train(encoder, device, dtype);
  auto fresh = make_encoder();
  const double from_scratch = train(fresh, device, dtype);
  std::printf("output %s Python's; loss after 200 steps: %.4f fine-tuned, %.4f from scratch\n",
              same ? "is" : "IS NOT", tuned, from_scratch);
  return same && tuned < from_scratch / 2 ? EXIT_SUCCESS : EXIT_FAILURE;
}
