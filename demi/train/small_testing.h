#pragma once

#include <torch/torch.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "demi/core/error.h"
#include "demi/train/testing.h"
#include "demi/train/trainer.h"

namespace demi::train::testing {

inline std::shared_ptr<torch::optim::SGD> sgd(const torch::nn::Module& module, double rate = 0.1) {
  return std::make_shared<torch::optim::SGD>(module.parameters(), rate);
}

/// A linear layer, rows of three classes for it, and the plain loop over them.
struct Small {
  torch::nn::Linear model{nullptr};
  std::shared_ptr<torch::optim::SGD> optimizer;
  at::Tensor input, target;

  explicit Small(int64_t rows = 8) {
    torch::manual_seed(5);
    model = torch::nn::Linear(6, 3);
    input = torch::randn({rows, 6});
    target = torch::arange(rows) % 3;
    optimizer = sgd(*model);
  }
  Trainer trainer(TrainerOptions options = {}) const {
    if (options.optimizers.empty()) options.optimizers = {optimizer};
    return {network(model), std::move(options)};
  }
  Rows loader(int64_t batch = 4) const { return {input, target, batch}; }
  at::Tensor weight() const { return model->weight.detach().clone(); }
  /// A step of the plain loop.
  void step(const at::Tensor& loss) const {
    optimizer->zero_grad();
    loss.backward();
    optimizer->step();
  }
};

/// A network with one layer in two places.
inline torch::nn::Sequential with_a_shared_layer() {
  torch::manual_seed(2);
  torch::nn::Linear layer(6, 6);
  return torch::nn::Sequential(layer, torch::nn::Tanh(), layer);
}

/// Returns its input: a model for figures of given outputs.
struct FixedImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) { return input; }
};
TORCH_MODULE(Fixed);

inline std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("no UsageError: ") + error.what();
  }
  return "nothing was thrown";
}

}  // namespace demi::train::testing
