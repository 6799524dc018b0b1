// A recipe of one's own in a program that links demi: a model, data, a loss, a metric and a
// callback that the library has never heard of, trained by demi::Trainer in mixed precision.
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>

#include "demi/demi.h"
#include "examples/arguments.h"

namespace train = demi::train;

// Two residual blocks on points of the plane.
struct SpiralNetImpl : torch::nn::Module {
  torch::nn::Linear in{2, 64}, first{64, 64}, second{64, 64}, out{64, 1};
  SpiralNetImpl() {
    register_module("in", in);
    register_module("first", first);
    register_module("second", second);
    register_module("out", out);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor h = in(x).relu();
    h = h + first(h).relu();
    h = h + second(h).relu();
    return out(h);
  }
};
TORCH_MODULE(SpiralNet);

// Two spirals of labels -1 and 1. A batch is a function of epoch and position alone.
class Spirals : public demi::data::Loader {
 public:
  explicit Spirals(int64_t seed) : seed_(seed) {}
  int64_t examples() const override { return kBatch * batches(); }
  int64_t batches() const override { return 20; }
  demi::data::Batch batch(int64_t epoch, int64_t position) const override {
    auto random = torch::make_generator<at::CPUGeneratorImpl>(seed_ + 1000 * epoch + position);
    const auto t = torch::rand({kBatch, 1}, random) * 2 + 0.2;
    const auto label = torch::randint(0, 2, {kBatch, 1}, random).to(torch::kFloat) * 2 - 1;
    return {
        torch::cat({label * t * torch::cos(3 * t), label * t * torch::sin(3 * t)}, 1), label, {}};
  }

 private:
  static constexpr int64_t kBatch = 64;
  int64_t seed_;
};

// Largest margin: mean of max(0, 1 - label x output), in FP32.
torch::Tensor hinge(const torch::Tensor& output, const torch::Tensor& label) {
  return (1 - label * output.to(torch::kFloat)).clamp_min(0).mean();
}

struct Print : train::Callback {
  int steps = 0;
  void on_step(const train::StepMetrics&, int64_t) override { ++steps; }
  void on_epoch_end(const train::EpochRecord& e) override {
    std::printf("epoch %lld  hinge %.3f  right side %.3f\n", static_cast<long long>(e.epoch),
                e.loss, e.validation->metrics.front().second);
  }
};

int main(int argc, char** argv) {
  const auto [device, dtype] = read_arguments(argc, argv, torch::kBFloat16);
  torch::manual_seed(0);
  SpiralNet model;
  model->to(device);
  train::TrainerOptions options{.epochs = 5, .device = device};
  options.precision = demi::parse_precision(dtype == torch::kHalf ? "fp16" : "bf16");
  options.loss = hinge;
  options.metrics = {{"right side", [](const torch::Tensor& output, const torch::Tensor& label) {
                        return output.sign().eq(label).sum();
                      }}};
  options.optimizers = {
      std::make_shared<demi::optim::AdamW>(model->parameters(), demi::optim::AdamWOptions(1e-2))};
  train::Trainer trainer(model, options);
  const auto print = std::make_shared<Print>();
  trainer.add(print);
  const demi::data::PrefetchLoader training(
      std::make_shared<Spirals>(1));  // made ahead, in a thread
  const Spirals validation(2);
  const train::History history = trainer.fit(training, &validation);
  const double right = history.epochs.back().validation->metrics.front().second;

  // The trained weights in FP32, on spirals of their own.
  const train::Evaluation exact =
      train::evaluate(train::network(model), Spirals(3),
                      {.device = device, .loss = hinge, .metrics = options.metrics});
  std::printf("in FP32    hinge %.3f  right side %.3f\n", exact.loss, exact.metrics.front().second);
  return right > 0.95 && exact.metrics.front().second > 0.95 && print->steps == 100 ? EXIT_SUCCESS
                                                                                    : EXIT_FAILURE;
}
