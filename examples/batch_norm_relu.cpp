// A network of pictures whose batch norms compute ReLU and pooling with them, trained beside the
// same network of LibTorch's layers.
//
// Pictures of 24 x 24 with a bright square in one of four quarters; 30 steps of AdamW in mixed
// precision, from the same weights. Both have the same names, so the file of one is read by the
// other. Prints losses and answers that are right, and exits with 1 unless both learn, and agree
// once they hold the same weights.
#include <torch/torch.h>

#include <cstdio>
#include <sstream>

#include "demi/demi.h"
#include "examples/arguments.h"

namespace {

using torch::nn::Conv2dOptions;

// Identity stands where ReLU and pooling do in the other network: names count the layers.
torch::nn::Sequential with_demi() {
  using demi::nn::BatchNorm2d, demi::nn::BatchNorm2dOptions, torch::nn::Identity;
  return torch::nn::Sequential(
      torch::nn::Conv2d(Conv2dOptions(1, 16, 3).padding(1).bias(false)),
      BatchNorm2d(BatchNorm2dOptions(16).relu(true).pool(2)), Identity(), Identity(),
      torch::nn::Conv2d(Conv2dOptions(16, 32, 3).padding(1).bias(false)),
      BatchNorm2d(BatchNorm2dOptions(32).relu(true)), Identity(), torch::nn::AdaptiveAvgPool2d(2),
      torch::nn::Flatten(), torch::nn::Linear(128, 4));
}

torch::nn::Sequential with_libtorch() {
  using torch::nn::BatchNorm2d, torch::nn::ReLU;
  return torch::nn::Sequential(torch::nn::Conv2d(Conv2dOptions(1, 16, 3).padding(1).bias(false)),
                               BatchNorm2d(16), ReLU(), torch::nn::MaxPool2d(2),
                               torch::nn::Conv2d(Conv2dOptions(16, 32, 3).padding(1).bias(false)),
                               BatchNorm2d(32), ReLU(), torch::nn::AdaptiveAvgPool2d(2),
                               torch::nn::Flatten(), torch::nn::Linear(128, 4));
}

struct Pictures {
  torch::Tensor images, quarters;
};

Pictures draw() {
  const auto images = torch::randn({256, 1, 24, 24}), quarters = torch::arange(256) % 4;
  for (int64_t i = 0; i < 256; ++i)
    images[i][0].narrow(0, i % 4 / 2 * 12 + 3, 6).narrow(1, i % 2 * 12 + 3, 6).add_(1.5);
  return {images, quarters};
}

// Its file, as any program reads it.
void copy(const torch::nn::Sequential& from, torch::nn::Sequential& to) {
  std::stringstream file;
  torch::save(from, file);
  torch::load(to, file);
}

double train(torch::nn::Sequential& model, const Pictures& data, torch::Dtype dtype) {
  demi::optim::AdamW optimizer(model->parameters(), 1e-2);
  demi::GradScaler scaler;
  double last = 0;
  for (int step = 0; step < 30; ++step) {
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      demi::Autocast region(data.images.device().type(), dtype);
      loss = torch::cross_entropy_loss(model->forward(data.images), data.quarters);
    }
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
    last = loss.item<double>();
  }
  return last;
}

torch::Tensor answers(torch::nn::Sequential& model, const Pictures& data) {
  const torch::NoGradGuard no_grad;
  model->eval();
  return model->forward(data.images);
}

}  // namespace

int main(int argc, char** argv) {
  const auto [device, dtype] = read_arguments(argc, argv, torch::kBFloat16);
  torch::manual_seed(0);
  Pictures data = draw();
  // As convolutions on a CPU want them.
  data.images = data.images.to(device).contiguous(torch::MemoryFormat::ChannelsLast);
  data.quarters = data.quarters.to(device);
  auto ours = with_demi(), theirs = with_libtorch();
  ours->to(device);
  theirs->to(device);
  copy(ours, theirs);
  const double our_loss = train(ours, data, dtype), their_loss = train(theirs, data, dtype);
  copy(ours, theirs);
  const auto our_answers = answers(ours, data), their_answers = answers(theirs, data);
  const auto right = (our_answers.argmax(1) == data.quarters).sum().item<int64_t>();
  const double apart = (our_answers - their_answers).abs().max().item<double>();
  std::printf("loss after 30 steps: demi's layers %.4f, LibTorch's %.4f\n", our_loss, their_loss);
  std::printf("right: %lld of 256; the same weights' answers differ by %.1e\n",
              static_cast<long long>(right), apart);
  return our_loss < 0.3 && their_loss < 0.3 && right > 240 && apart < 1e-3 ? 0 : 1;
}
