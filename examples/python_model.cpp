// A network that was written in Python trains here without Python, in mixed precision: its .pt2
// file (tests/fixtures/imported/make.py made it, scripts/demi_export.py makes yours) is a module.
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>

#include "demi/demi.h"
#include "examples/arguments.h"

namespace {

// Pictures of ten classes: each has a colour of its own, under noise.
torch::Tensor pictures_of(const torch::Tensor& classes) {
  const auto colour =
      torch::stack({classes % 2, classes / 2 % 2, classes / 4}, 1).to(torch::kFloat);
  return colour.view({-1, 3, 1, 1}) + 0.3 * torch::randn({classes.size(0), 3, 32, 32});
}

}  // namespace

int main(int argc, char** argv) {
  const auto [device, dtype] = read_arguments(argc, argv, torch::kBFloat16);
  torch::manual_seed(1);
  demi::ImportedModel model(DEMI_EXAMPLES "/../tests/fixtures/imported/pictures.pt2");
  model->select_output("logits");  // it returns a dict
  model->to(device);
  model->train();
  demi::optim::AdamW optimizer(model->parameters(), demi::optim::AdamWOptions(1e-2));
  demi::GradScaler scaler;
  double first = 0, last = 0;
  for (int step = 0; step < 150; ++step) {
    const auto classes = torch::randint(0, 10, {64});
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      demi::Autocast region(device.type(), dtype);
      loss = torch::cross_entropy_loss(model->forward(pictures_of(classes).to(device)),
                                       classes.to(device));
    }
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  // Under Python's names: demi_export.load_weights(model, FILE) in Python.
  const auto weights = model->state_dict();
  std::printf("loss %.3f, after 150 steps %.3f; %zu tensors, such as bn.running_var\n", first, last,
              weights.size());
  return last < first / 2 && weights.contains("bn.running_var") ? EXIT_SUCCESS : EXIT_FAILURE;
}
