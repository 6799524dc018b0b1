// A training loop of one's own with every instrument: loop::Step takes the step, and the monitor,
// the search for an Inf's origin, what-if, phases, averages, checkpoints and schedules know it.
//
//     own_loop [DEVICE [DTYPE]]
#include <torch/torch.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "demi/demi.h"
#include "examples/arguments.h"

namespace {

namespace fs = std::filesystem;
using Observers = std::vector<std::shared_ptr<demi::loop::StepObserver>>;

// The batch of a step is a function of its number.
std::pair<torch::Tensor, torch::Tensor> batch_of(int64_t step, torch::Device device) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(step));
  const auto x = torch::randn({64, 16}, generator).to(device);
  return {x, (x.narrow(1, 0, 4).sum(1) > 0).to(torch::kLong)};
}

torch::nn::Sequential make_model(torch::Device device) {
  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(16, 64), torch::nn::BatchNorm1d(64),
                              torch::nn::ReLU(), torch::nn::Dropout(0.1), torch::nn::Linear(64, 2));
  model->to(device);
  return model;
}

struct Training {
  torch::Device device;
  demi::Precision precision;
  torch::nn::Sequential model = make_model(device);
  demi::optim::AdamW adamw{model->parameters(), demi::optim::AdamWOptions(3e-3)};
  demi::GradScaler scaler{{.enabled = precision.autocast == torch::kHalf}};
  demi::EMA average{*model, 0.9};
  demi::optim::lr::Scheduler schedule{adamw, demi::optim::lr::cosine(60)};

  demi::loop::Job job() { return {{model.get()}, {&adamw}, &scaler, {&schedule}, &average}; }

  // Steps `from` to `to`. Returns the last loss.
  double train(int64_t from, int64_t to, const Observers& observers = {}) {
    demi::loop::Step step(job(), {.precision = precision,
                                  .device = device,
                                  .accumulate = 2,
                                  .clip_norm = 1,
                                  .guard_statistics = true,
                                  .steps_taken = from});
    for (const auto& observer : observers) step.watch(observer);
    if (from == 0) torch::manual_seed(1);  // what dropout draws; a checkpoint holds it later
    torch::Tensor loss;
    for (int64_t n = 2 * from; n < 2 * to; ++n) {
      step.phases().enter(demi::profile::Phase::data);
      const auto [x, y] = batch_of(n, device);
      loss = step.batch([&, x = x] { return model->forward(x); },
                        [y = y](const auto& out) { return torch::cross_entropy_loss(out, y); },
                        {.inputs = {{"input", x}, {"target", y}}});
      if (step.is_due()) step.finish();
    }
    step.read();
    for (const auto phase : {demi::profile::Phase::forward, demi::profile::Phase::backward})
      std::printf("%s %.1f ms  ",
                  demi::profile::kPhaseNames[static_cast<std::size_t>(phase)].data(),
                  step.phases().spent(phase).count() * 1e3);
    std::printf("\n");
    return loss.item<double>();
  }
};

}  // namespace

int main(int argc, char** argv) {
  const auto [device, dtype] = read_arguments(argc, argv, torch::kHalf);
  const auto mixed = demi::parse_precision(dtype == torch::kHalf ? "fp16" : "bf16");
  // What would need FP32 in fp16: asked in a few FP32 steps, and written as a policy.
  const auto what_if = std::make_shared<demi::monitor::WhatIf>();
  Training{device, demi::parse_precision("fp32")}.train(0, 3, {what_if});
  std::printf("%zu parts or ops would need FP32\n", what_if->result().cures.size());
  // Which layers numbers of 8 bits would harm, asked likewise.
  const auto in_mxfp8 = std::make_shared<demi::monitor::RecipeWhatIf>(
      demi::monitor::RecipeWhatIfOptions{.recipe = "mxfp8", .every = 1});
  Training{device, demi::parse_precision("fp32")}.train(0, 3, {in_mxfp8});
  std::printf("mxfp8 would harm %d layers\n", static_cast<int>(in_mxfp8->result().harmed()));

  int looks = 0;
  const auto monitor = std::make_shared<demi::monitor::Monitor>(20, [&](const auto& step) {
    const double scale = step.loss_scale.value_or(1);
    const auto shares = demi::monitor::flushed_shares(step.weight_gradients(), scale);
    std::printf("step %d: %.1f %% of the gradients would be 0 in fp16 without a loss scale\n",
                static_cast<int>(step.step), 100 * shares.flushed_unscaled);
    ++looks;
  });
  const auto search = std::make_shared<demi::monitor::OriginSearch>(
      [](const auto& origin) { std::printf("%s\n", demi::monitor::to_string(origin).c_str()); });
  Training whole{device, mixed}, first{device, mixed}, second{device, mixed};
  const double loss = whole.train(0, 60, {monitor, search});

  // Saved after 40 steps, loaded into other objects, and on to the same weights.
  const auto folder = fs::temp_directory_path() / ("demi-own-loop-" + std::to_string(getpid()));
  first.train(0, 40);
  demi::checkpoint::save(folder, 40, first.job());
  demi::checkpoint::load(folder, second.job());
  second.train(40, 60);
  fs::remove_all(folder);
  bool same = true;
  const auto a = whole.model->parameters(), b = second.model->parameters();
  for (std::size_t i = 0; i < a.size(); ++i) same &= torch::equal(a[i], b[i]);
  std::printf("loss %.3f; saved and resumed: %s weights\n", loss, same ? "the same" : "OTHER");
  return same && looks == 3 && loss < 0.5 ? EXIT_SUCCESS : EXIT_FAILURE;
}
