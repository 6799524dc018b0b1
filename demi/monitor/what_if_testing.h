#pragma once

// Models whose numbers can be followed by hand, and the questions that tests of what-if ask.
#include <ATen/record_function.h>
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "demi/autocast/autocast.h"
#include "demi/monitor/layers.h"
#include "demi/monitor/what_if.h"
#include "demi/optim/sgd.h"
#include "demi/train/testing.h"
#include "demi/train/trainer.h"

namespace demi::monitor::what_if_testing {

inline constexpr int64_t kFeatures = 8;

// Three layers, of which `big` and `small` can have weights that cancel each other: the model's
// output is that of ordinary weights, but between the two the numbers are `factor` times as large,
// and the gradient of `small` as well.
struct PlainImpl : torch::nn::Module {
  torch::nn::Linear big{nullptr}, small{nullptr}, head{nullptr};
  std::function<at::Tensor(const at::Tensor&)> between = [](const at::Tensor& x) {
    return x.relu();
  };
  explicit PlainImpl(double factor = 1) {
    torch::manual_seed(5);
    big = register_module("big", torch::nn::Linear(kFeatures, kFeatures));
    small = register_module("small", torch::nn::Linear(kFeatures, kFeatures));
    head = register_module("head", torch::nn::Linear(kFeatures, 1));
    const at::NoGradGuard no_grad;
    for (at::Tensor& p : big->parameters()) p.mul_(factor);
    small->weight.mul_(1 / factor);
  }
  at::Tensor forward(const at::Tensor& x) {
    return head->forward(small->forward(between(big->forward(x))).relu());
  }
};
TORCH_MODULE(Plain);

inline const at::Tensor& input_rows() {
  static const at::Tensor x = [] {
    torch::manual_seed(6);
    return at::randn({24, kFeatures});
  }();
  return x;
}

inline train::testing::Rows training_rows() { return {input_rows(), input_rows().sum(1, true), 4}; }

inline train::TrainerOptions options_of(torch::nn::Module& model, const char* precision = "fp32") {
  train::TrainerOptions options;
  options.precision = parse_precision(precision);
  options.loss = train::Loss::mse;
  options.optimizers = {std::make_shared<optim::SGD>(model.parameters(), optim::SGDOptions(2e-14))};
  return options;
}

// The first layer hands `x` on, exactly: powers of two, which tests follow by hand.
inline Plain handing_on(const std::function<at::Tensor(const at::Tensor&)>& between) {
  Plain model;
  const at::NoGradGuard no_grad;
  model->big->weight.copy_(at::eye(kFeatures));
  model->big->bias.zero_();
  model->between = between;
  return model;
}

inline train::testing::Rows rows_of(const at::Tensor& x) {
  return {x, at::zeros({x.size(0), 1}), 4};
}

inline at::Tensor filled(double number) { return at::full({4, kFeatures}, number, torch::kFloat); }

template <class Holder>
WhatIfResult ask(Holder model, const data::Loader& loader, WhatIfOptions options = {},
                 int64_t accumulate = 1) {
  train::TrainerOptions with = options_of(*model);
  with.accumulate = accumulate;
  train::Trainer trainer(train::network(model), with);
  const auto what_if = std::make_shared<WhatIf>(std::move(options));
  trainer.add(what_if);
  trainer.fit(loader);
  return what_if->result();
}

inline std::vector<std::string> names_of(const std::vector<Cure>& cures) {
  std::vector<std::string> names;
  for (const Cure& cure : cures)
    names.push_back((cure.kind == Cure::Kind::part ? "part " : "op ") + cure.name);
  return names;
}

inline const TensorFate* find(const WhatIfResult& result, const std::string& layer,
                              const std::string& op, TensorPlace place) {
  for (const TensorFate& fate : result.tensors)
    if (fate.layer == layer && fate.op == op && fate.place == place) return &fate;
  return nullptr;
}

// The ops whose output is 16 bits when the same forward pass runs in a region, by LibTorch's
// dispatcher, to compare with the prediction from FP32.
inline std::set<std::string> ops_in_16_bits(const std::function<at::Tensor()>& forward) {
  static thread_local std::set<std::string>* seen = nullptr;
  static thread_local int depth = 0;
  std::set<std::string> names;
  seen = &names;
  depth = 0;
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(
          [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
            ++depth;
            return nullptr;
          },
          [](const at::RecordFunction& op, at::ObserverContext*) {
            if (--depth > 0) return;
            const std::string name = std::string(op.name()).substr(6);
            for_each_tensor(op.outputs(), [&](const at::Tensor& tensor) {
              if (tensor.scalar_type() == torch::kHalf) seen->insert(name);
            });
          })
          .needsOutputs(true)
          .scopes({at::RecordScope::FUNCTION}));
  {
    const Autocast region(torch::kCPU, torch::kHalf);
    forward();
  }
  at::removeCallback(handle);
  return names;
}

}  // namespace demi::monitor::what_if_testing
