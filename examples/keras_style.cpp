// Mixed precision as Keras users write it: set a policy, build the model, call fit. The output
// layer is a softmax, which the policy keeps in FP32, as Keras advises.
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>

#include "demi/demi.h"
#include "examples/arguments.h"

namespace {

// Points of 32 features around one centre for each of 10 classes.
struct Points {
  torch::Tensor x, y;
  Points(const torch::Tensor& centres, int64_t count)
      : x(torch::randn({count, 32})), y(torch::randint(0, 10, {count})) {
    x += centres.index_select(0, y);
  }
};

}  // namespace

int main(int argc, char** argv) {
  const auto [device, dtype] = read_arguments(argc, argv, torch::kHalf);
  const bool is_half = dtype == torch::kHalf;
  torch::manual_seed(0);
  const torch::Tensor centres = 2 * torch::randn({10, 32});
  const Points train(centres, 1024), val(centres, 256);

  demi::set_global_policy(is_half ? "mixed_float16" : "mixed_bfloat16");

  torch::nn::Sequential model(torch::nn::Linear(32, 64), torch::nn::ReLU(),
                              torch::nn::Linear(64, 10), torch::nn::Softmax(1));
  model->to(device);

  demi::TrainerOptions options;  // Adam with a learning rate of 0.001 unless told otherwise
  options.device = device;
  options.loss = demi::train::Loss::cross_entropy_probabilities;
  options.metrics = {demi::train::top_k(2)};

  const demi::train::History history =
      demi::Trainer(model, options)
          .fit(train.x, train.y, {.epochs = 5, .validation = {val.x, val.y}});

  for (const auto& epoch : history.epochs)
    std::printf("epoch %lld  loss %.4f  accuracy %.3f  val_loss %.4f  val_accuracy %.3f\n",
                static_cast<long long>(epoch.epoch), epoch.loss, *epoch.accuracy,
                epoch.validation->loss, *epoch.validation->accuracy);

  // What the policy means: variables in FP32, computation in 16 bits, the loss scaled by itself if
  // they are fp16, probabilities in FP32.
  const demi::Autocast region(device.type(), demi::global_policy());
  const bool fp32_weights = model->parameters().front().scalar_type() == torch::kFloat;
  const bool fp32_softmax = model->forward(val.x.to(device)).scalar_type() == torch::kFloat;
  const bool scaled = history.steps.front().loss_scale.has_value() == is_half;
  const double accuracy = *history.epochs.back().validation->accuracy;
  const bool right = fp32_weights && fp32_softmax && scaled && accuracy > 0.95;
  return right ? EXIT_SUCCESS : EXIT_FAILURE;
}
