#pragma once

// A network in training on the device of recorded_graph.h, with and without graphs.
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "demi/loop/step.h"
#include "demi/optim/ema.h"
#include "demi/optim/kinds_testing.h"
#include "demi/scaler/grad_scaler.h"
#include "demi/step/emulated_device_testing.h"
#include "tests/recorded_graph.h"

namespace graphed_training {

using demi::EMA;
using demi::GradScaler;
using demi::GradScalerOptions;
using demi::StepResult;
using demi::UsageError;
using demi::loop::GraphMode;
using demi::loop::Options;
using demi::loop::Step;
using demi::optim::testing::EmulatedDevice;
using demi::optim::testing::KindId;
using second_device::kDevice;
using Tensors = std::vector<at::Tensor>;

/// Graphs of the emulation, as those of the machine.
class MachineGraphs {
 public:
  MachineGraphs() { demi::graph::set_machine_graphs(&graphs_); }
  ~MachineGraphs() { demi::graph::set_machine_graphs(nullptr); }
  MachineGraphs(const MachineGraphs&) = delete;
  MachineGraphs& operator=(const MachineGraphs&) = delete;

 private:
  second_device::Graphs graphs_;
};

class ScalerOn : public GradScaler {
 public:
  ScalerOn(GradScalerOptions options, const demi::optim::Backend& backend)
      : GradScaler(options, backend) {}
};

struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", torch::nn::Linear(6, 16));
    norm = register_module("norm", torch::nn::BatchNorm1d(16));
    drop = register_module("drop", torch::nn::Dropout(0.25));
    last = register_module("last", torch::nn::Linear(16, 3));
  }
  at::Tensor forward(const at::Tensor& x) { return last(drop(at::relu(norm(first(x))))); }
  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Dropout drop{nullptr};
};
TORCH_MODULE(Net);

inline at::Tensor cross_entropy(const at::Tensor& output, const at::Tensor& target) {
  return at::cross_entropy_loss(output, target);
}

struct Setting {
  KindId kind = KindId::kAdam;
  const char* precision = "bf16";
  int64_t accumulate = 1;
  double clip_norm = 0;
  bool averages = false, guards = false, has_scaler = true, limits_norm = false;
};

/// A network in training on the second device.
class Training {
 public:
  Training(const Setting& setting, GraphMode mode, int64_t read_every = 0)
      : setting_(setting), device_(c10::DeviceType::XPU) {
    net->to(kDevice);
    demi::optim::StepOptions options_of_step;
    if (setting.limits_norm) options_of_step.skip_norm_above = demi::optim::NormLimit{.bound = 50};
    optimizer =
        demi::optim::testing::make(setting.kind, net->parameters(), options_of_step, device_);
    if (setting.has_scaler)
      scaler.emplace(GradScalerOptions{.init_scale = 8, .growth_interval = 4}, device_);
    if (setting.averages) average.emplace(*net, 0.5);
    Options options{.precision = demi::parse_precision(setting.precision),
                    .device = kDevice,
                    .accumulate = setting.accumulate,
                    .clip_norm = setting.clip_norm,
                    .guard_statistics = setting.guards,
                    .read_every = read_every,
                    .graph = mode};
    step.emplace(demi::loop::Job{.models = {&*net},
                                 .optimizers = {optimizer.get()},
                                 .scaler = scaler ? &*scaler : nullptr,
                                 .average = average ? &*average : nullptr},
                 options, graphs_);
    torch::manual_seed(11);
  }

  static Tensors inputs(int number, int64_t rows = 8) {
    const auto generator = at::detail::createCPUGenerator(std::uint64_t(100 + number));
    return {at::randn({rows, 6}, generator).to(kDevice)};
  }
  static Tensors targets(int number, int64_t rows = 8) {
    return {((at::arange(rows) * 7 + number) % 3).to(kDevice)};
  }

  at::Tensor batch(const Tensors& x, const Tensors& y) {
    return step->batch(
        x, y, [&](const Tensors& in) { return forward ? forward(in) : net->forward(in[0]); },
        [&](const at::Tensor& out, const Tensors& to) {
          return loss ? loss(out, to) : cross_entropy(out, to[0]);
        });
  }
  /// One step of `accumulate` batches.
  void take(int number, int64_t rows = 8) {
    if (before) before();
    for (int64_t i = 0; i < setting_.accumulate; ++i)
      losses.push_back(batch(inputs(10 * number + int(i), rows), targets(number, rows)));
    results.push_back(step->finish().front());
  }
  /// A step of one batch whose tensors are not handed over.
  void plainly(int number) {
    const Tensors x = inputs(number), y = targets(number);
    losses.push_back(step->batch([&] { return net->forward(x[0]); },
                                 [&](const at::Tensor& out) { return cross_entropy(out, y[0]); }));
    results.push_back(step->finish().front());
  }
  void set_rate(double rate) {
    for (auto& group : optimizer->param_groups()) group.options().set_lr(rate);
  }
  /// What a user can see of the run, on the CPU.
  Tensors seen() {
    Tensors all;
    for (const at::Tensor& one : losses) all.push_back(one.cpu());
    for (const at::Tensor& one : net->parameters()) all.push_back(one.detach().cpu());
    for (const at::Tensor& one : net->buffers()) all.push_back(one.cpu());
    for (const auto& [name, one] : optimizer->state_tensors()) all.push_back(one.cpu());
    if (average)
      for (const auto& [name, one] : average->averages()) all.push_back(one.cpu());
    for (const StepResult& one : results)
      all.push_back(at::tensor(
          {one.skipped() ? 1.0 : 0.0, one.grad_norm().value_or(-1), double(one.scale())}));
    return all;
  }

  static Net fresh() {
    torch::manual_seed(3);
    return {};
  }
  Net net = fresh();
  std::unique_ptr<demi::optim::Optimizer> optimizer;
  std::optional<ScalerOn> scaler;
  std::optional<EMA> average;
  std::function<void()> before;  // each step
  std::function<at::Tensor(const Tensors&)> forward;
  std::function<at::Tensor(const at::Tensor&, const Tensors&)> loss;
  Tensors losses;
  std::vector<StepResult> results;

 private:
  Setting setting_;
  EmulatedDevice device_;
  second_device::Graphs graphs_;

 public:
  std::optional<Step> step;
};

inline void expect_same(const Tensors& plain, const Tensors& graphed) {
  ASSERT_EQ(plain.size(), graphed.size());
  for (std::size_t i = 0; i < plain.size(); ++i)
    EXPECT_TRUE(at::equal(plain[i].nan_to_num(7e7), graphed[i].nan_to_num(7e7))) << i << "\n"
                                                                                 << plain[i] << "\n"
                                                                                 << graphed[i];
}

using Work = std::function<void(Training&)>;

/// The same program with and without graphs.
inline void expect_same_run(const Setting& setting, const Work& work, int64_t least_replays = 1) {
  Tensors plain, graphed;
  {
    Training training(setting, GraphMode::off);
    work(training);
    plain = training.seen();
  }
  Training training(setting, GraphMode::on);
  work(training);
  graphed = training.seen();
  EXPECT_GE(training.step->graph_counts().replays, least_replays);
  expect_same(plain, graphed);
}

}  // namespace graphed_training
