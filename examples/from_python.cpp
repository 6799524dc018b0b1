// Each line of a Python AMP program and its line here. docs/guide/from_python.md has them side by
// side; examples/from_python.py is the Python side. Both print the same.
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "demi/demi.h"
#include "examples/arguments.h"

namespace {

torch::Tensor waves(torch::IntArrayRef shape, double phase) {
  const auto count = c10::multiply_integers(shape);
  return torch::sin(torch::arange(count, torch::kFloat64) * 0.7 + phase)
      .to(torch::kFloat)
      .view(shape);
}

torch::nn::Linear make_model() {
  torch::nn::Linear model(16, 4);
  const torch::NoGradGuard no_grad;
  model->weight.copy_(waves({4, 16}, 1));
  model->bias.copy_(waves({4}, 2));
  return model;
}

void show(const char* what, const torch::Tensor& tensor) {
  std::printf("%s %s\n", what, c10::toString(tensor.scalar_type()));
}
void show(const char* what, double value) { std::printf("%s %.6g\n", what, value); }

void regions(const torch::Tensor& x, torch::Dtype dtype) {
  auto model = make_model();
  {
    demi::Autocast region(torch::kCPU, dtype);
    show("in a region", model->forward(x));
    demi::Autocast off(torch::kCPU, {.enabled = false});
    show("in a disabled one", model->forward(x));
  }
  {
    demi::Autocast region(torch::kCPU, {.dtype = dtype, .cache_enabled = false});
    show("without a cache", model->forward(x));
  }
  show("outside", model->forward(x));
  const demi::ThreadState state = [&] {
    const demi::Autocast region(torch::kCPU, dtype);
    return demi::ThreadState();
  }();
  std::thread worker([&] {
    demi::ThreadState::Guard guard(state);
    show("in a thread", model->forward(x));
  });
  worker.join();
}

void loop(const torch::Tensor& x, torch::Dtype dtype) {
  auto model = make_model();
  demi::optim::AdamW optimizer(model->parameters(), demi::optim::AdamWOptions(1e-2));
  demi::GradScaler scaler({.init_scale = 1024, .growth_interval = 2});
  demi::optim::lr::Scheduler schedule(optimizer, demi::optim::lr::cosine(10));
  demi::EMA ema(*model, 0.9);
  double norm = 0;
  for (int step = 0; step < 4; ++step) {
    torch::Tensor loss;
    {
      demi::Autocast region(torch::kCPU, dtype);
      loss = model->forward(x).pow(2).mean();
    }
    optimizer.zero_grad();
    scaler.scale(loss).backward();
    scaler.unscale_(optimizer);
    norm = demi::optim::clip_grad_norm_(model->parameters(), 1.0).item<double>();
    scaler.step(optimizer);
    scaler.update();
    schedule.step();
    ema.update();
  }
  show("scale", scaler.get_scale());
  show("steps since it grew", scaler.state_dict().at("_growth_tracker"));
  show("learning rate", schedule.get_last_lr()[0]);
  std::printf("norm %.2f\n", norm);
  std::printf("average %.2f\n", ema.averages().at("weight").sum().item<double>());
}

void penalty(const torch::Tensor& x, torch::Dtype dtype) {
  auto model = make_model();
  demi::GradScaler scaler({.init_scale = 128});
  torch::Tensor loss;
  {
    demi::Autocast region(torch::kCPU, dtype);
    loss = model->forward(x).pow(2).mean();
  }
  auto gradients = torch::autograd::grad({scaler.scale(loss)}, model->parameters(), {}, {}, true);
  std::printf("penalty %.2f\n",
              (gradients[0] / scaler.get_scale()).to(torch::kFloat).norm().item<double>());
}

void conversion() {
  auto model = make_model();
  demi::to_precision(*model, torch::kBFloat16);
  show("converted", model->weight);
}

void save_and_load() {
  const auto folder =
      std::filesystem::temp_directory_path() / ("demi-from-python-" + std::to_string(getpid()));
  auto model = make_model();
  demi::optim::AdamW optimizer(model->parameters(), demi::optim::AdamWOptions(1e-2));
  demi::GradScaler scaler({.init_scale = 512});
  demi::loop::Job objects{.models = {model.get()}, .optimizers = {&optimizer}, .scaler = &scaler};
  scaler.scale(torch::zeros({}));  // makes the scale, so that it can be set
  demi::checkpoint::save(folder, /*step=*/7, objects);
  scaler.update(2.0);
  demi::checkpoint::load(folder, objects);
  show("loaded scale", scaler.get_scale());
  std::filesystem::remove_all(folder);
}

void settings() {
  demi::Backends{.cuda_matmul_allow_tf32 = true}.set();
  demi::Backends{.cudnn_benchmark = true}.set();
  demi::Backends{.deterministic_algorithms = true}.set();
  demi::Backends{.threads = 1}.set();
  show("threads", demi::Backends::current().threads.value());
  const torch::Device device = demi::pick_device("auto");
  auto model = make_model();
  model->to(device);
  show("on a GPU if there is one", model->weight);
}

}  // namespace

int main(int argc, char** argv) {
  const auto [device, dtype] = read_arguments(argc, argv, torch::kBFloat16);
  if (!device.is_cpu()) return 77;  // the lines are the same; CI compares them on a CPU
  const auto x = waves({8, 16}, 3);
  regions(x, dtype);
  loop(x, dtype);
  penalty(x, dtype);
  conversion();
  save_and_load();
  settings();
  return EXIT_SUCCESS;
}
