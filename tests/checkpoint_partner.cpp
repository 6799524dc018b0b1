// The C++ side of python_checkpoint_test.py: goes on with a checkpoint for some steps and saves.
//
//     checkpoint_partner KIND FROM TO FIRST LAST
//
// KIND as in KINDS there, or sgd- and a name in SCHEDULES there. The optimizer is made with other
// options than the checkpoint's, which must replace them. With a schedule it prints the rates after
// each step, by group.
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

#include "demi/demi.h"

namespace {

using Groups = std::vector<torch::optim::OptimizerParamGroup>;

torch::nn::Sequential make_model() {
  return torch::nn::Sequential(torch::nn::Linear(torch::nn::LinearOptions(8, 16).bias(false)),
                               torch::nn::BatchNorm1d(16), torch::nn::ReLU(),
                               torch::nn::Linear(16, 1));
}

// Weights in one group, biases in another.
Groups groups_of(const torch::nn::Sequential& model) {
  std::vector<at::Tensor> weights, biases;
  for (const auto& item : model->named_parameters())
    (item.key().ends_with("weight") ? weights : biases).push_back(item.value());
  return {torch::optim::OptimizerParamGroup(weights), torch::optim::OptimizerParamGroup(biases)};
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& kind,
                                                        const Groups& groups) {
  if (kind.starts_with("sgd"))
    return std::make_unique<demi::optim::SGD>(groups, demi::optim::SGDOptions(0.5));
  if (kind.starts_with("adamw"))
    return std::make_unique<demi::optim::AdamW>(groups, demi::optim::AdamWOptions(0.5));
  if (kind.starts_with("rmsprop"))
    return std::make_unique<demi::optim::RMSprop>(groups, demi::optim::RMSpropOptions(0.5));
  if (kind.starts_with("nadam"))
    return std::make_unique<demi::optim::NAdam>(groups, demi::optim::NAdamOptions(0.5));
  if (kind.starts_with("adagrad"))
    return std::make_unique<demi::optim::Adagrad>(groups, demi::optim::AdagradOptions(0.5));
  if (kind.starts_with("radam"))
    return std::make_unique<demi::optim::RAdam>(groups, demi::optim::RAdamOptions(0.5));
  return std::make_unique<demi::optim::Adam>(groups, demi::optim::AdamOptions(0.5));
}

namespace lr = demi::optim::lr;

// As SCHEDULES has them.
lr::Schedule schedule_of(const std::string& name) {
  if (name == "step") return lr::step(3, 0.5);
  if (name == "multi-step") return lr::multi_step({2, 5, 9}, 0.5);
  if (name == "exponential") return lr::exponential(0.9);
  if (name == "cosine") return lr::cosine(12);
  if (name == "cosine-again") return lr::cosine(4, 0.001);
  if (name == "warm-restarts") return lr::cosine_warm_restarts(3, 1, 0.001);
  if (name == "warm-restarts-longer") return lr::cosine_warm_restarts(2, 2);
  if (name == "multiplicative") return lr::exponential(0.9);
  if (name == "constant") return lr::lambda([](int64_t t) { return t < 8 ? 0.5 : 1; });
  if (name == "linear") return lr::linear(0.1, 1, 9);
  if (name == "polynomial") return lr::polynomial(10, 2);
  if (name == "lambda") return lr::lambda([](int64_t t) { return 1 / (1 + double(t)); });
  if (name == "warm-up") return lr::sequential({lr::linear(0.1, 1, 4), lr::cosine(8)}, {4});
  if (name == "warm-up-late") return lr::sequential({lr::linear(0.1, 1, 9), lr::cosine(3)}, {9});
  if (name == "warm-up-restarts")
    return lr::sequential({lr::linear(0.1, 1, 3), lr::cosine_warm_restarts(2, 2)}, {3});
  if (name == "one-cycle") return lr::one_cycle({.total_steps = 14});
  return nullptr;
}

// (32, 8): dyadic fractions, the same in Python.
at::Tensor batch_of(int64_t step) {
  const auto rows = torch::arange(32).unsqueeze(1) * 37, columns = torch::arange(8) * 11;
  return ((rows + columns + 101 * step) % 64 - 32).to(torch::kFloat) / 32;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  const std::string kind = argv[1];
  const int64_t first = std::stoll(argv[4]), last = std::stoll(argv[5]);
  auto model = make_model();
  const auto optimizer = make_optimizer(kind, groups_of(model));
  demi::GradScaler scaler;
  demi::loop::Job objects{
      .models = {model.get()}, .optimizers = {optimizer.get()}, .scaler = &scaler};
  std::optional<lr::Scheduler> schedule;
  const std::string name = kind.starts_with("sgd-") ? kind.substr(4) : "";
  if (const lr::Schedule rule = schedule_of(name)) {
    const bool has_momentum = name == "one-cycle";
    schedule.emplace(*optimizer, rule,
                     has_momentum ? lr::one_cycle_momentum({.total_steps = 14}) : nullptr);
    objects.schedules.push_back(&*schedule);
  }
  demi::checkpoint::load(argv[2], objects);
  for (int64_t step = first; step < last; ++step) {
    const at::Tensor x = batch_of(step), y = x.sum(1, true) / 2;
    optimizer->zero_grad();
    at::Tensor loss;
    {
      demi::Autocast region(torch::kCPU,
                            {.dtype = torch::kBFloat16, .enabled = kind.ends_with("bf16")});
      loss = torch::mse_loss(model->forward(x), y);
    }
    if (step == 5) loss = loss * 1e30F * 1e30F;  // this step is skipped
    scaler.scale(loss).backward();
    scaler.step(*optimizer);
    scaler.update();
    if (!schedule) continue;
    schedule->step();
    for (const double rate : schedule->get_last_lr()) std::printf("%.17g ", rate);
    std::printf("\n");
  }
  demi::checkpoint::save(argv[3], last, objects);
  return 0;
}
