// A ResNet-18 with torchvision's names goes on in C++, in mixed precision, on three classes of its
// own. In Python:
//
//     model = torchvision.models.resnet18(weights="DEFAULT")
//     safetensors.torch.save_file(model.state_dict(), "resnet18.safetensors")
//
//     fine_tuning_resnet [DEVICE [DTYPE [FILE]]]
//
// Without FILE: weights that were just drawn stand in for trained ones.
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>

#include "demi/demi.h"
#include "examples/arguments.h"
#include "lab/models/resnet.h"

namespace {

using demi::checkpoint::NamedTensors;
using demi::models::ResNet;

demi::models::ResNetOptions options_of(int64_t classes) {
  auto options = demi::models::ResNetOptions::resnet18();
  options.stem = demi::models::ResNetStem::imagenet;
  options.classes = classes;
  return options;
}

// Parameters and buffers under the module's own names.
NamedTensors tensors_of(const ResNet& network) {
  return demi::checkpoint::capture({.models = {network.ptr().get()}, .random = false}).model;
}

// The file's tensors under the names of `network`. Its classifier stays as it is, if it is to tell
// other classes apart.
NamedTensors renamed(const NamedTensors& file, const ResNet& network, bool with_classifier) {
  NamedTensors tensors = tensors_of(network);
  for (auto& [name, tensor] : tensors)
    if (with_classifier || !name.starts_with("classifier."))
      tensor = file.at(demi::models::torchvision_name(name, options_of(1)));
  return tensors;
}

ResNet load(const NamedTensors& file, int64_t classes, bool with_classifier) {
  ResNet network(options_of(classes));
  demi::checkpoint::restore({.model = renamed(file, network, with_classifier)},
                            {.models = {network.ptr().get()}, .random = false});
  return network;
}

NamedTensors just_drawn() {
  NamedTensors tensors;
  const ResNet network(options_of(10));
  for (const auto& [name, tensor] : tensors_of(network))
    tensors[demi::models::torchvision_name(name, options_of(10))] = tensor;
  return tensors;
}

// The network's output for the file's example, if it has one.
bool is_the_same_network(const NamedTensors& file) {
  if (!file.contains("example.input")) return true;
  const torch::NoGradGuard no_grad;
  ResNet network = load(file, file.at("fc.bias").size(0), /*with_classifier=*/true);
  network->eval();
  const auto output = network->forward(file.at("example.input"));
  const bool same = torch::allclose(output, file.at("example.output"), 1e-3, 1e-4);
  std::printf("output %s Python's\n", same ? "is" : "IS NOT");
  return same;
}

// Pictures whose class is their brightest channel.
torch::Tensor pictures_of(const torch::Tensor& classes) {
  auto pictures = torch::randn({classes.size(0), 3, 64, 64});
  for (int64_t i = 0; i < classes.size(0); ++i) pictures[i][classes[i].item<int64_t>()] += 1;
  return pictures;
}

}  // namespace

int main(int argc, char** argv) {
  const torch::Device device = device_named(argc > 1 ? argv[1] : "cpu");
  const torch::Dtype dtype = dtype_named(argc > 2 ? argv[2] : "bf16");
  torch::manual_seed(0);
  const NamedTensors file =
      argc > 3 ? demi::checkpoint::load_safetensors(argv[3]).tensors : just_drawn();
  const bool same = is_the_same_network(file);

  ResNet network = load(file, /*classes=*/3, /*with_classifier=*/false);
  network->to(device);
  demi::optim::AdamW optimizer(network->parameters(), demi::optim::AdamWOptions(1e-3));
  demi::GradScaler scaler;
  double first = 0, last = 0;
  for (int step = 0; step < 12; ++step) {
    const auto classes = torch::randint(3, {16});
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      demi::Autocast region(device.type(), dtype);
      loss = torch::cross_entropy_loss(network->forward(pictures_of(classes).to(device)),
                                       classes.to(device));
    }
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  std::printf("loss %.3f -> %.3f in 12 steps\n", first, last);
  return same && last < first / 2 ? EXIT_SUCCESS : EXIT_FAILURE;
}
