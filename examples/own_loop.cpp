// A training loop of one's own with every instrument: loop::Step takes the step, and the monitor,
// the search for an Inf's origin, what-if, the profiler's phases, averages, checkpoints and
// schedules know it.
//
//     own_loop [DEVICE [DTYPE]]
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "demi/demi.h"
#include "examples/arguments.h"

namespace {

namespace fs = std::filesystem;
using torch::Tensor;

struct Data {
  Tensor x, y;
};

// The batch of a step is a function of its number.
Data batch_of(int64_t step, torch::Device device) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(step));
  const Tensor x = torch::randn({64, 16}, generator).to(device);
  return {x, (x.narrow(1, 0, 4).sum(1) > 0).to(torch::kLong)};
}

struct Training {
  torch::nn::Sequential model;
  demi::optim::AdamW adamw;
  demi::GradScaler scaler;
  demi::EMA average;
  demi::optim::lr::Scheduler schedule;
  demi::train::Precision precision;
  torch::Device device;

  Training(torch::Device on, const char* named)
      : model((torch::manual_seed(0),
               torch::nn::Sequential(torch::nn::Linear(16, 64), torch::nn::BatchNorm1d(64),
                                     torch::nn::ReLU(), torch::nn::Dropout(0.1),
                                     torch::nn::Linear(64, 2)))),
        adamw((model->to(on), model->parameters()), demi::optim::AdamWOptions(3e-3)),
        scaler({.enabled = std::string(named) == "fp16"}),
        average(*model, 0.9),
        schedule(adamw, demi::optim::lr::cosine(60)),
        precision(demi::train::parse_precision(named)),
        device(on) {}

  demi::loop::Job job() {
    return {.models = {model.get()},
            .optimizers = {&adamw},
            .scaler = &scaler,
            .schedules = {&schedule},
            .average = &average};
  }

  // Returns the last loss.
  double train(int64_t from, int64_t to, const fs::path& folder,
               const std::vector<std::shared_ptr<demi::loop::StepObserver>>& observers = {}) {
    demi::loop::Step step(job(), {.precision = precision,
                                  .device = device,
                                  .accumulate = 2,
                                  .clip_norm = 1,
                                  .guard_statistics = true,
                                  .steps_taken = from});
    for (const auto& observer : observers) step.watch(observer);
    double loss = 0;
    for (int64_t batch = 2 * from; batch < 2 * to; ++batch) {
      step.phases().enter(demi::profile::Phase::data);
      const auto [x, y] = batch_of(batch, device);
      const Tensor of_batch = step.batch(
          [&] { return model->forward(x); },
          [&](const Tensor& out) { return torch::cross_entropy_loss(out.to(torch::kFloat), y); },
          {.inputs = {{"input", x}, {"target", y}}});
      if (!step.is_due()) continue;
      step.finish();
      loss = of_batch.item<double>();
    }
    step.read();
    if (!folder.empty()) demi::checkpoint::save(folder, step.steps_taken(), job());
    using demi::profile::Phase;
    std::printf("forward %.1f ms, backward %.1f ms, step %.1f ms\n",
                step.phases().spent(Phase::forward).count() * 1e3,
                step.phases().spent(Phase::backward).count() * 1e3,
                step.phases().spent(Phase::step).count() * 1e3);
    return loss;
  }
};

}  // namespace

int main(int argc, char** argv) {
  const auto [device, dtype] = read_arguments(argc, argv, torch::kHalf);
  const char* mixed = dtype == torch::kHalf ? "fp16" : "bf16";
  const fs::path folder = fs::temp_directory_path() / ("demi-own-loop-" + std::to_string(getpid()));

  // Which parts of the model would need FP32: asked in a few FP32 steps before.
  Training asked(device, "fp32");
  const auto what_if = std::make_shared<demi::monitor::WhatIf>();
  asked.train(0, 3, {}, {what_if});
  std::printf("what-if: %zu parts would need FP32 in fp16\n", what_if->result().cures.size());

  int looks = 0, origins = 0;
  const auto monitor = std::make_shared<demi::monitor::Monitor>(20, [&](const auto& step) {
    ++looks;
    std::printf(
        "step %lld: %.1f %% of the gradients would be 0 without the loss scale\n",
        static_cast<long long>(step.step),
        100 * demi::monitor::flushed_shares(step.weight_gradients(), step.loss_scale.value_or(1))
                  .flushed_unscaled);
  });
  const auto search = std::make_shared<demi::monitor::OriginSearch>([&](const auto& origin) {
    ++origins;
    std::printf("%s\n", demi::monitor::to_string(origin).c_str());
  });
  Training whole(device, mixed), first(device, mixed), second(device, mixed);
  const double loss = whole.train(0, 60, {}, {monitor, search});

  // Saved after 40 steps, loaded into other objects, and on to the same weights.
  first.train(0, 40, folder);
  demi::checkpoint::load(folder, second.job());
  second.train(40, 60, {});
  fs::remove_all(folder);
  bool same = true;
  const auto a = whole.model->parameters(), b = second.model->parameters();
  for (std::size_t i = 0; i < a.size(); ++i) same &= torch::equal(a[i], b[i]);
  std::printf("loss %.3f; saved and resumed: %s weights\n", loss, same ? "the same" : "OTHER");
  return same && looks == 3 && loss < 0.4 ? EXIT_SUCCESS : EXIT_FAILURE;
}
