// PyTorch's recipe "Saving/Resuming": a run without mixed precision goes on with it, and a run with
// it goes on without. The checkpoint of a run without a scaler has no scale, and a new one begins;
// a run without a scaler leaves the scale in the checkpoint alone.
#include <torch/torch.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "demi/demi.h"
#include "examples/arguments.h"

namespace {

struct Run {
  torch::nn::Sequential model;
  demi::optim::AdamW optimizer;
  demi::GradScaler scaler;
  bool mixed;

  Run(torch::Device device, bool use_amp)
      : model(torch::nn::Linear(8, 64), torch::nn::ReLU(), torch::nn::Linear(64, 1)),
        optimizer((model->to(device), model->parameters()), demi::optim::AdamWOptions(0.01)),
        scaler(demi::GradScalerOptions{.enabled = use_amp}),
        mixed(use_amp) {}

  demi::loop::Job objects() {
    return {.models = {model.ptr().get()}, .optimizers = {&optimizer}, .scaler = &scaler};
  }

  // Returns the last loss.
  double train(const Arguments& on, int first, int last) {
    double seen = 0;
    for (int step = first; step < last; ++step) {
      const auto x = torch::linspace(-1, 1, 256, on.device).mul(step % 5 + 1).sin().view({32, 8});
      const auto y = x.sum(1, true);
      optimizer.zero_grad();
      torch::Tensor loss;
      {
        const demi::Autocast region(on.device.type(), {.dtype = on.dtype, .enabled = mixed});
        loss = torch::mse_loss(model->forward(x).to(torch::kFloat), y);
      }
      scaler.scale(loss).backward();
      scaler.step(optimizer);
      scaler.update();
      seen = loss.item<double>();
    }
    return seen;
  }
};

}  // namespace

int main(int argc, char** argv) {
  const Arguments on = read_arguments(argc, argv, torch::kHalf);
  const auto folder =
      std::filesystem::temp_directory_path() / ("resume_precision-" + std::to_string(getpid()));
  bool is_as_it_must = true;
  for (const bool begins_mixed : {false, true}) {
    torch::manual_seed(0);
    Run begun(on.device, begins_mixed);
    begun.train(on, 0, 100);
    const auto saved = demi::checkpoint::save(folder, 100, begun.objects());
    const double unbroken = begun.train(on, 100, 200);

    Run resumed(on.device, !begins_mixed);  // with other weights, which the checkpoint replaces
    demi::checkpoint::load(saved, resumed.objects());
    const double first = resumed.train(on, 100, 101), last = resumed.train(on, 101, 200);
    std::printf("begun %s, resumed %s: loss %.5f, then %.5f (unbroken %.5f)\n",
                begins_mixed ? "with mixed precision" : "in FP32",
                begins_mixed ? "without" : "with mixed precision", first, last, unbroken);
    is_as_it_must &= last < 0.05 && last < first + 0.01 && unbroken < 0.05;
  }
  std::filesystem::remove_all(folder);
  return is_as_it_must ? EXIT_SUCCESS : EXIT_FAILURE;
}
