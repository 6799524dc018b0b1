// A user's program: mixed steps through what demi/demi.h offers. Exits with 0 only if they were
// right.
#include <demi/data/order.h>
#include <demi/demi.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <iostream>
#include <limits>

namespace {

demi::StepResult step(torch::nn::Linear& model, torch::optim::SGD& optimizer,
                      demi::GradScaler& scaler, const at::Tensor& input) {
  optimizer.zero_grad();
  at::Tensor output;
  {
    demi::Autocast region(at::kCPU, at::kBFloat16);
    output = model(input);
  }
  scaler.scale(output.to(at::kFloat).sum()).backward();
  demi::StepResult result = scaler.step(optimizer);
  scaler.update();
  return result;
}

/// Options as README and the guides write them: one or two fields by name, the others at their
/// defaults.
bool options_by_name(torch::nn::Linear& model) {
  [[maybe_unused]] const demi::Autocast off(torch::kCPU, {.enabled = false});
  [[maybe_unused]] const demi::Autocast region(torch::kCPU,
                                               {.dtype = torch::kBFloat16, .cache_enabled = false});
  [[maybe_unused]] const demi::GradScaler scaler({.init_scale = 1024, .growth_interval = 2});
  demi::optim::SGD optimizer(model->parameters(), 0.1, {.skip_nonfinite = false});
  [[maybe_unused]] const demi::optim::lr::Schedule cycle =
      demi::optim::lr::one_cycle({.total_steps = 10});
  [[maybe_unused]] const demi::optim::lr::Plateau plateau(optimizer, {.patience = 3});
  [[maybe_unused]] const demi::Backends backends{.threads = 1};
  [[maybe_unused]] const demi::data::OrderOptions order{
      .batch_size = 32, .shuffle = true, .seed = 7};
  [[maybe_unused]] const demi::TrainerOptions options{.epochs = 5, .device = torch::kCPU};
  [[maybe_unused]] const demi::train::FitOptions fit{
      .epochs = 5, .validation = {torch::ones(1), torch::ones(1)}};
  [[maybe_unused]] const demi::train::FitOptions without{.epochs = 5};
  [[maybe_unused]] const demi::train::EvaluateOptions evaluate{.precision =
                                                                   demi::parse_precision("bf16")};
  [[maybe_unused]] const demi::train::CheckpointOptions checkpoints{.folder = "checkpoints"};
  [[maybe_unused]] const demi::checkpoint::SaveOptions save{.keep_last = 2};
  [[maybe_unused]] const demi::loop::Job objects{.models = {model.get()},
                                                 .optimizers = {&optimizer}};
  return options.epochs == fit.epochs && without.epochs == 5 && !objects.models.empty();
}

}  // namespace

int main() {
  torch::nn::Linear model(torch::nn::LinearOptions(8, 4).bias(false));
  {
    at::NoGradGuard no_grad;
    model->weight.fill_(1);
  }
  torch::optim::SGD optimizer(model->parameters(), 0.25);
  demi::GradScaler scaler;

  // d sum(x W^T) / dW is the column sum of x, 2 everywhere; W = 1 - 0.25 * 2. All exact in bf16.
  const bool stepped = !step(model, optimizer, scaler, at::ones({2, 8})).skipped();
  const at::Tensor expected = at::full({4, 8}, 0.5F);
  const bool right = stepped && at::equal(model->weight.detach(), expected);

  const at::Tensor infinite = at::full({2, 8}, std::numeric_limits<float>::infinity());
  const bool skipped = step(model, optimizer, scaler, infinite).skipped();
  const bool kept = skipped && at::equal(model->weight.detach(), expected);
  const bool backed_off = scaler.get_scale() == 32768.0F;  // half of 65536

  std::cout << "step " << right << ", skipped " << kept << ", scale " << backed_off << '\n';
  return right && kept && backed_off && options_by_name(model) ? 0 : 1;
}
