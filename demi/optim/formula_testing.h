#pragma once

#include <torch/torch.h>

#include "demi/optim/kinds_testing.h"

namespace demi::optim::testing {

/// A parameter under an optimizer of kKinds, by its paper's formula in fp64. Flat.
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
    } else if (kind == KindId::kRMSprop) {
      g = g + decay * weight;
      if (t == 1) first = torch::zeros_like(g), second = torch::zeros_like(g), most = first.clone();
      second = 0.99 * second + 0.01 * g * g;
      first = 0.99 * first + 0.01 * g;
      most = 0.5 * most + g / ((second - first * first).sqrt() + 0.1);
      weight = weight - rate * most;
    } else if (kind == KindId::kNAdam) {
      g = g + decay * weight;
      average(g, 0.999);
      const auto mu = [](int at) { return 0.9 * (1 - 0.5 * std::pow(0.96, at * 0.004)); };
      product = product * mu(t);
      const at::Tensor estimate =
          mu(t + 1) * first / (1 - product * mu(t + 1)) + (1 - mu(t)) * g / (1 - product);
      weight = weight - rate * estimate / (hat(second, 0.999).sqrt() + eps);
    } else if (kind == KindId::kRAdam) {
      average(g, 0.9);
      const double last = 2 / (1 - 0.9) - 1, power = std::pow(0.9, t);
      const double rho = last - 2 * t * power / (1 - power);
      at::Tensor update = hat(first, 0.9);
      if (rho > 5)
        update = update *
                 std::sqrt((rho - 4) * (rho - 2) * last / ((last - 4) * (last - 2) * rho)) *
                 std::sqrt(1 - power) / (second.sqrt() + eps);
      weight = weight - rate * update;
    } else if (kind == KindId::kAdagrad) {
      g = g + decay * weight;
      if (t == 1) second = torch::full_like(g, 0.25);
      second = second + g * g;
      weight = weight - rate / (1 + (t - 1) * 0.5) * g / (second.sqrt() + 1e-10);
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
  double product = 1;  // of NAdam's momentums
};

}  // namespace demi::optim::testing
