// A dataset of torch::data in mixed precision, twice: its DataLoader in a loop as it stands, and
// the dataset as a demi::data::Loader, for Trainer.
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>

#include "demi/demi.h"
#include "examples/arguments.h"

using torch::data::Example;

// Points of the plane, and whether they lie in the unit circle.
class Points : public torch::data::datasets::Dataset<Points> {
 public:
  Points(int64_t count, uint64_t seed)
      : points_(torch::rand({count, 2}, torch::make_generator<at::CPUGeneratorImpl>(seed)) * 3 -
                1.5),
        inside_(points_.square().sum(1).lt(1).to(torch::kLong)) {}
  Example<> get(size_t i) override {
    const auto at = static_cast<int64_t>(i);
    return {points_[at], inside_[at]};
  }
  std::optional<size_t> size() const override { return static_cast<size_t>(points_.size(0)); }

 private:
  torch::Tensor points_, inside_;
};

torch::nn::Sequential make_model(torch::Device device) {
  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(2, 64), torch::nn::ReLU(),
                              torch::nn::Linear(64, 64), torch::nn::ReLU(),
                              torch::nn::Linear(64, 2));
  model->to(device);
  return model;
}

double accuracy(torch::nn::Sequential& model, torch::Device device) {
  const torch::NoGradGuard no_grad;
  const demi::data::Batch batch =
      demi::data::loader_of(Points(1000, 2), {.batch_size = 1000})->batch(0, 0);
  const auto right = model->forward(batch.input.to(device)).argmax(1).eq(batch.target.to(device));
  return right.to(torch::kFloat).mean().item<double>();
}

// torch's own sampler, workers and batches, of which the last is smaller.
double in_a_loop(torch::Device device, torch::Dtype dtype) {
  auto model = make_model(device);
  demi::optim::AdamW optimizer(model->parameters(), 1e-2);
  demi::GradScaler scaler({.enabled = dtype == torch::kHalf});
  auto batches = torch::data::make_data_loader<torch::data::samplers::RandomSampler>(
      Points(2000, 1).map(torch::data::transforms::Stack<>()),
      torch::data::DataLoaderOptions(64).workers(2));
  for (int epoch = 0; epoch < 5; ++epoch)
    for (const Example<>& batch : *batches) {
      optimizer.zero_grad();
      torch::Tensor loss;
      {
        demi::Autocast region(device.type(), dtype);
        loss = torch::nn::functional::cross_entropy(model->forward(batch.data.to(device)),
                                                    batch.target.to(device));
      }
      scaler.scale(loss).backward();
      scaler.step(optimizer);
      scaler.update();
    }
  return accuracy(model, device);
}

// demi's order and workers: a run can be resumed in the middle of an epoch.
double by_a_trainer(torch::Device device, torch::Dtype dtype) {
  auto model = make_model(device);
  demi::TrainerOptions options{.epochs = 5, .device = device};
  options.precision = demi::parse_precision(dtype == torch::kHalf ? "fp16" : "bf16");
  options.loss = [](const torch::Tensor& output, const torch::Tensor& target) {
    return torch::nn::functional::cross_entropy(output.to(torch::kFloat), target);
  };
  options.optimizers = {std::make_shared<demi::optim::AdamW>(model->parameters(), 1e-2)};
  const auto loader = demi::data::loader_of(Points(2000, 1).map(torch::data::transforms::Stack<>()),
                                            {.batch_size = 64, .shuffle = true, .seed = 1});
  demi::Trainer(model, options)
      .fit(demi::data::PrefetchLoader(loader, {.workers = 2, .device = device}));
  return accuracy(model, device);
}

int main(int argc, char** argv) {
  const auto [device, dtype] = read_arguments(argc, argv, torch::kBFloat16);
  const double loop = in_a_loop(device, dtype), trainer = by_a_trainer(device, dtype);
  std::printf("right side of the circle: %.3f in a loop, %.3f by a Trainer\n", loop, trainer);
  return loop > 0.95 && trainer > 0.95 ? EXIT_SUCCESS : EXIT_FAILURE;
}
