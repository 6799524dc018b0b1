// A LibTorch program and the same in mixed precision: what docs/guide/from_libtorch.md shows. Its
// blocks are taken from here. Lines marked with a star are the ones that changed.
#include <torch/torch.h>

#include <cstdio>
#include <memory>
#include <sstream>
#include <utility>
#include <vector>

#include "demi/demi.h"
#include "examples/arguments.h"

namespace {

using Batches = std::vector<std::pair<torch::Tensor, torch::Tensor>>;
using torch::nn::functional::cross_entropy;

torch::nn::Sequential make_model(const torch::Device& device) {
  torch::nn::Sequential model(torch::nn::Linear(16, 32), torch::nn::ReLU(),
                              torch::nn::Linear(32, 4));
  model->to(device);
  return model;
}

float train(torch::nn::Sequential& model, const Batches& batches,
            torch::optim::Optimizer& optimizer, demi::GradScaler& scaler,  // *
            torch::Device device, torch::Dtype dtype) {
  float total = 0;
  for (const auto& [input, target] : batches) {
    optimizer.zero_grad();
    torch::Tensor output, loss;  // * before the region, which is a scope
    {
      demi::Autocast region(device.type(), dtype);  // *
      output = model->forward(input);
      loss = cross_entropy(output, target);
    }
    scaler.scale(loss).backward();  // *
    scaler.step(optimizer);         // *
    scaler.update();                // *
    total += loss.item<float>();
  }
  return total / static_cast<float>(batches.size());
}

float evaluate(torch::nn::Sequential& model, const Batches& batches) {
  const torch::NoGradGuard no_grad;
  model->eval();
  int64_t right = 0, count = 0;
  for (const auto& [input, target] : batches) {
    right += model->forward(input).argmax(1).eq(target).sum().item<int64_t>();
    count += target.size(0);
  }
  model->train();
  return static_cast<float>(right) / static_cast<float>(count);
}

float clip_by_hand(const std::vector<torch::Tensor>& parameters, float max_norm) {
  float squares = 0;
  for (const auto& p : parameters)
    if (p.grad().defined()) squares += p.grad().square().sum().item<float>();
  const float norm = std::sqrt(squares);
  if (norm > max_norm)
    for (const auto& p : parameters)
      if (p.grad().defined()) p.grad().mul_(max_norm / norm);
  return norm;
}

int failures = 0;
void expect(bool right, const char* what) {
  if (right) return;
  ++failures;
  std::printf("wrong: %s\n", what);
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments arguments = read_arguments(argc, argv, torch::kBFloat16);
  const torch::Device device = arguments.device;
  const torch::Dtype dtype = arguments.dtype;
  torch::manual_seed(0);
  Batches batches;
  for (int i = 0; i < 20; ++i) {
    const torch::Tensor input = torch::randn({32, 16}, device);
    batches.emplace_back(input, input.slice(1, 0, 4).argmax(1));
  }
  auto model = make_model(device);
  demi::GradScaler scaler({.init_scale = 1024});  // the gradients below hold to 65,504 with it

  // Groups, with LibTorch's options or demi's.
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(model[0]->parameters(), std::make_unique<torch::optim::AdamWOptions>(3e-3));
  groups.emplace_back(model[2]->parameters(), std::make_unique<torch::optim::AdamWOptions>(
                                                  torch::optim::AdamWOptions().weight_decay(0)));
  demi::optim::AdamW optimizer(groups, torch::optim::AdamWOptions(1e-2));  // *
  expect(optimizer.param_groups()[1].options().get_lr() == 1e-2, "a group inherits");

  const float first = train(model, batches, optimizer, scaler, device, dtype);
  for (auto& group : optimizer.param_groups()) {
    auto& options = static_cast<torch::optim::AdamWOptions&>(group.options());
    options.lr(options.lr() * 0.5);
  }
  float last = 0;
  for (int epoch = 1; epoch < 10; ++epoch)
    last = train(model, batches, optimizer, scaler, device, dtype);
  std::printf("loss %.2f -> %.2f, accuracy %.2f\n", first, last, evaluate(model, batches));
  expect(last < first / 2, "it learns");
  expect(optimizer.group_numbers()[0].at("lr") == 1.5e-3, "the rate is set");

  // Clipping of one's own.
  optimizer.zero_grad();
  torch::Tensor loss;
  {
    demi::Autocast region(device.type(), dtype);
    loss = cross_entropy(model->forward(batches[0].first), batches[0].second) * 100;
  }
  scaler.scale(loss).backward();
  scaler.unscale_(optimizer);  // * true gradients from here on
  const float norm = clip_by_hand(model->parameters(), 1.0);
  const float clipped = clip_by_hand(model->parameters(), 1.0);
  scaler.step(optimizer);
  scaler.update();
  expect(norm > 1 && clipped < 1.01F, "the gradients are true ones");

  // Moments of one parameter.
  const torch::Tensor weight = model[0]->parameters()[0];
  auto& state = static_cast<demi::optim::ParamState&>(  // *
      *optimizer.state().at(weight.unsafeGetTensorImpl()));
  const torch::Tensor momentum = state["exp_avg"], count = state.step;
  expect(momentum.sizes() == weight.sizes() && count.item<int64_t>() == 201, "the state");

  // A state of one's own, as after pruning: LibTorch's is taken over at the next step.
  auto pruned = std::make_unique<torch::optim::AdamWParamState>();
  pruned->step(201).exp_avg(torch::zeros_like(weight)).exp_avg_sq(torch::ones_like(weight));
  optimizer.state()[weight.unsafeGetTensorImpl()] = std::move(pruned);
  train(model, batches, optimizer, scaler, device, dtype);
  expect(optimizer.state_tensors().at("0.step").item<int64_t>() == 221, "the state is taken over");

  // Files go both ways.
  std::stringstream file;
  torch::save(optimizer, file);
  torch::optim::AdamW back(groups, torch::optim::AdamWOptions(1e-2));
  torch::load(back, file);
  expect(back.param_groups()[0].options().get_lr() == 1.5e-3, "torch::optim reads it");

  // Start again.
  optimizer = demi::optim::AdamW(model->parameters(), 1e-3);
  train(model, batches, optimizer, scaler, device, dtype);

  // Two networks, several backwards, one update.
  auto generator = make_model(device), critic = make_model(device);
  demi::optim::Adam of_generator(generator->parameters(), 1e-3);
  demi::optim::Adam of_critic(critic->parameters(), 1e-3);
  const torch::Tensor noise = torch::randn({8, 16}, device), real = torch::randn({8, 16}, device);
  torch::Tensor critic_loss, generator_loss;
  of_critic.zero_grad();
  {
    demi::Autocast region(device.type(), dtype);
    const torch::Tensor fake = generator->forward(noise).repeat({1, 4}).detach();
    critic_loss = critic->forward(fake).mean() - critic->forward(real).mean();
  }
  scaler.scale(critic_loss).backward();
  scaler.step(of_critic);
  of_generator.zero_grad();
  {
    demi::Autocast region(device.type(), dtype);
    generator_loss = -critic->forward(generator->forward(noise).repeat({1, 4})).mean();
  }
  scaler.scale(generator_loss).backward();
  scaler.step(of_generator);
  scaler.update();  // * once, after all steps

  // 16 bits at the region's edge.
  torch::Tensor scores, rows = torch::zeros({4, 32}, device);
  {
    demi::Autocast region(device.type(), dtype);
    scores = model[0]->as<torch::nn::Linear>()->forward(batches[0].first);
    rows.index_add_(0, torch::arange(4, device), scores.slice(0, 0, 4).to(rows.dtype()));  // *
    scores = scores.masked_fill(scores < 0, -65504.0);                                     // *
  }
  expect(scores.scalar_type() == dtype, "outputs have 16 bits");
  const torch::Tensor leaving = scores.to(torch::kFloat).cpu();  // *
  expect(leaving.accessor<float, 2>().size(0) == 32, "FP32 for accessor");
  return failures;
}
