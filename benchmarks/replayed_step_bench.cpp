// replayed_step_bench [ROUNDS]: what the host does for a step that is replayed in CUDA graphs, in
// microseconds: demi's calls batch() and finish(), and a step of the Trainer but for its loader.
//
// The device is the emulated one of tests/recorded_graph.h, whose graphs do nothing here: what is
// left is the host's part. The tensor operations of a replay (copies of inputs, losses, results)
// are launched on a GPU as well; here each costs what the emulation needs for it, so that their
// time alone, measured in the same run, is shown beside the calls. The network has 40 tensors of
// 66 elements on average, about those of `demi bench step`. Shown is the least of many short
// rounds.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <optional>

#include "demi/core/instruction_set.h"
#include "demi/loop/step.h"
#include "demi/optim/kinds_testing.h"
#include "demi/scaler/grad_scaler.h"
#include "demi/train/trainer.h"
#include "tests/recorded_graph.h"

namespace {

using demi::optim::testing::EmulatedDevice;
using demi::optim::testing::KindId;
using second_device::kDevice;
using Tensors = std::vector<at::Tensor>;
using Clock = std::chrono::steady_clock;

constexpr int kLayers = 20, kWidth = 11;  // 11 x 11 weights and 11 biases: 66 elements a tensor
constexpr int kStepsOfRound = 20;

/// The emulation's graphs, whose replay does nothing.
class IdleGraphs final : public demi::graph::GraphSource {
 public:
  std::string obstacle(c10::Device device) const override { return recorded_.obstacle(device); }
  std::unique_ptr<demi::graph::DeviceGraph> make(
      c10::Device device, const demi::graph::DeviceGraph* beside) const override {
    const auto* other = dynamic_cast<const Idle*>(beside);
    return std::make_unique<Idle>(recorded_.make(device, other ? other->of.get() : nullptr));
  }

 private:
  struct Idle final : demi::graph::DeviceGraph {
    explicit Idle(std::unique_ptr<demi::graph::DeviceGraph> graph) : of(std::move(graph)) {}
    void begin() override { of->begin(); }
    void end() override { of->end(); }
    void abandon() noexcept override { of->abandon(); }
    void replay() override {}
    std::unique_ptr<demi::graph::DeviceGraph> of;
  };
  second_device::Graphs recorded_;
};

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int i = 0; i < kLayers; ++i)
      layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth)));
    register_module("layers", layers);
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& layer : *layers) x = layer->as<torch::nn::Linear>()->forward(x).relu();
    return x;
  }
  torch::nn::ModuleList layers;
};
TORCH_MODULE(Net);

class ScalerOn : public demi::GradScaler {
 public:
  explicit ScalerOn(const demi::optim::Backend& backend)
      : GradScaler(demi::GradScalerOptions{}, backend) {}
};

at::Tensor cross_entropy(const at::Tensor& output, const at::Tensor& target) {
  return at::cross_entropy_loss(output, target);
}

double microseconds(Clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

/// The least of the rounds of what one of `steps` takes.
template <class Act>
double least(int rounds, int steps, const Act& act) {
  double all = std::numeric_limits<double>::infinity();
  for (int round = 0; round < rounds; ++round) {
    const auto start = Clock::now();
    act();
    all = std::min(all, microseconds(Clock::now() - start) / steps);
  }
  return all;
}

struct Data {
  at::Tensor input = at::randn({8, kWidth}).to(kDevice);
  at::Tensor target = (at::arange(8) % kWidth).to(kDevice);
};

/// A Step in fp16, with a loss scale, clipping and AdamW.
class InStep {
 public:
  explicit InStep(const IdleGraphs& graphs)
      : step_({.models = {&*net_}, .optimizers = {optimizer_.get()}, .scaler = &scaler_},
              {.precision = demi::parse_precision("fp16"),
               .device = kDevice,
               .clip_norm = 1,
               .read_every = 0,
               .graph = demi::loop::GraphMode::on},
              graphs) {
    for (int i = 0; i < 8; ++i) {
      batch();
      step_.finish();
    }
  }

  void batch() {
    step_.batch(
        {data_.input}, {data_.target}, [this](const Tensors& in) { return net_->forward(in[0]); },
        [](const at::Tensor& out, const Tensors& to) { return cross_entropy(out, to[0]); });
  }

  bool print(int rounds) {
    double of_batch = std::numeric_limits<double>::infinity(), of_finish = of_batch;
    const auto before = step_.graph_counts().replays;
    for (int round = 0; round < rounds; ++round) {
      double batches = 0, finishes = 0;
      for (int i = 0; i < kStepsOfRound; ++i) {
        const auto start = Clock::now();
        batch();
        const auto between = Clock::now();
        step_.finish();
        batches += microseconds(between - start);
        finishes += microseconds(Clock::now() - between);
      }
      of_batch = std::min(of_batch, batches / kStepsOfRound);
      of_finish = std::min(of_finish, finishes / kStepsOfRound);
    }
    if (step_.graph_counts().replays - before != 2 * std::int64_t{rounds} * kStepsOfRound) {
      std::fprintf(stderr, "a step was not replayed: %s\n", step_.graph_counts().refusal.c_str());
      return false;
    }
    // What a replay asks LibTorch for: the batch into its places, loss and record out of them.
    const at::Tensor place = at::empty_like(data_.input), to = at::empty_like(data_.target);
    const at::Tensor loss = at::zeros({}, kDevice), record = at::zeros({6}, kDevice);
    const double operations = least(rounds, kStepsOfRound, [&] {
      const at::NoGradGuard no_grad;
      for (int i = 0; i < kStepsOfRound; ++i) {
        place.copy_(data_.input, /*non_blocking=*/true);
        to.copy_(data_.target, /*non_blocking=*/true);
        loss.clone();
        record.clone();
      }
    });
    std::printf(
        "Step                 %6.1f   (batch %.1f, finish %.1f), of them tensor operations %.1f: "
        "demi %.1f\n",
        of_batch + of_finish, of_batch, of_finish, operations, of_batch + of_finish - operations);
    return true;
  }

 private:
  static Net on_device() {
    Net net;
    net->to(kDevice);
    return net;
  }

  Net net_ = on_device();
  EmulatedDevice device_{c10::DeviceType::XPU};
  std::unique_ptr<demi::optim::Optimizer> optimizer_ =
      demi::optim::testing::make(KindId::kAmsgrad, net_->parameters(), {}, device_);
  ScalerOn scaler_{device_};
  Data data_;
  demi::loop::Step step_;
};

/// The same batch each time.
class Fixed : public demi::data::Loader {
 public:
  std::int64_t examples() const override { return 8 * batches(); }
  std::int64_t batches() const override { return 1'000'000; }
  demi::data::Batch batch(std::int64_t, std::int64_t) const override {
    return {data_.input, data_.target, {}};
  }

 private:
  Data data_;
};

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 400;
  if (rounds < 1) {
    std::fprintf(stderr, "replayed_step_bench [ROUNDS], 1 or more\n");
    return 2;
  }
  at::set_num_threads(1);
  std::printf(
      "%s; us of the host for a replayed step over %d tensors, the least of %d rounds of %d\n",
      demi::processor_name().c_str(), 2 * kLayers, rounds, kStepsOfRound);
  const IdleGraphs graphs;
  if (!InStep(graphs).print(rounds)) return 1;

  demi::graph::set_machine_graphs(&graphs);
  EmulatedDevice device(c10::DeviceType::XPU);
  Net net;
  net->to(kDevice);
  demi::TrainerOptions options;
  options.precision = demi::parse_precision("bf16");
  options.epochs = 1;
  options.device = kDevice;
  options.clip_norm = 1;
  options.optimizers = {
      demi::optim::testing::make(KindId::kAmsgrad, net->parameters(), {}, device)};
  options.schedule = demi::optim::lr::cosine(1'000'000);
  options.graph = demi::loop::GraphMode::on;
  int calls = 0;
  const demi::train::Network network{net.ptr(),
                                     [net, &calls](const demi::data::Batch& batch) mutable {
                                       ++calls;
                                       return net->forward(batch.input);
                                     }};
  demi::Trainer trainer(network, options);
  const Fixed loader;
  demi::Trainer::Parts parts(trainer, loader);
  parts.advance(10);
  const int before = calls;
  const double step = least(rounds, kStepsOfRound, [&] { parts.advance(kStepsOfRound); });
  std::printf("Trainer              %6.1f\n", step);
  if (calls != before) std::fprintf(stderr, "a step of the Trainer was not replayed\n");
  return calls == before ? 0 : 1;
}
