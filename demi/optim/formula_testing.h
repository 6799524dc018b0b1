#pragma once

#include <torch/torch.h>

#include "demi/optim/kinds_testing.h"

namespace demi::optim::testing {

/// One parameter under an optimizer of kKinds, by its paper's formula in fp64. Flat.
struct Formula {
  Formula(KindId which, at::Tensor start) : kind(which), weight(std::move(start)) {}

  void step(at::Tensor g) {
    constexpr double rate = 0.1, decay = 0.1, eps = 1e-8;
    ++t;
    if (kind == KindId::kSgd) {
      weight = weight - rate * g;
    } else if (kind == KindId::kMomentum) {
      g = g + decay * weight;
      first = t == 1 ? g : 0.9 * first + g;
      weight = weight - rate * first;
    } else if (kind == KindId::kAdam) {
      g = g + decay * weight;
      average(g, 0.999);
      weight = weight - rate * hat(first, 0.9) / (hat(second, 0.999).sqrt() + eps);
    } else if (kind == KindId::kAmsgrad) {
      weight = weight * (1 - rate * 1e-2);
      average(g, 0.999);
      most = t == 1 ? second : at::maximum(most, second);
      weight = weight - rate * hat(first, 0.9) / (hat(most, 0.999).sqrt() + eps);
    } else if (kind == KindId::kLamb) {
      average(g, 0.999);
      const at::Tensor update =
          hat(first, 0.9) / (hat(second, 0.999).sqrt() + 1e-6) + decay * weight;
      const double w = weight.norm().item<double>(), u = update.norm().item<double>();
      weight = weight - rate * (w > 0 && u > 0 ? w / u : 1.0) * update;
    } else {  // Lion
      if (t == 1) first = torch::zeros_like(g);
      const at::Tensor direction = (0.9 * first + 0.1 * g).sign();
      weight = weight * (1 - rate * decay) - rate * direction;
      first = 0.99 * first + 0.01 * g;
    }
  }

  KindId kind;
  at::Tensor weight;
  int t = 0;

 private:
  void average(const at::Tensor& g, double beta2) {
    if (t == 1) first = torch::zeros_like(g), second = torch::zeros_like(g);
    first = 0.9 * first + 0.1 * g;
    second = beta2 * second + (1 - beta2) * g * g;
  }
  at::Tensor hat(const at::Tensor& average, double beta) const {
    return average / (1 - std::pow(beta, t));
  }

  at::Tensor first, second, most;
};

}  // namespace demi::optim::testing
