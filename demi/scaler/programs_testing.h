#pragma once

#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace demi::testing {

/// Random programs with a GradScaler, the same as those of benchmarks/peers/scaler_programs.py. A
/// program comes from its seed alone.
class ProgramRandom {
 public:
  explicit ProgramRandom(std::uint64_t seed) : state_(seed) {}
  std::int64_t pick(std::int64_t n) {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<std::int64_t>(state_ >> 33) % n;
  }
  /// A multiple of 1/32 in 8 bits.
  float number() { return static_cast<float>(pick(255) - 127) / 32; }
  at::Tensor numbers(std::int64_t count) {
    std::vector<float> all;
    for (std::int64_t i = 0; i < count; ++i) all.push_back(number());
    return torch::tensor(all);
  }

 private:
  std::uint64_t state_;
};

using Parameters = std::vector<at::Tensor>;

/// The scaler, optimizers and clipping that run the program.
class ProgramParts {
 public:
  virtual ~ProgramParts() = default;
  virtual std::unique_ptr<torch::optim::Optimizer> optimizer(int kind, const Parameters& p) = 0;
  virtual void start(double init_scale, std::int64_t growth_interval) = 0;
  /// Adds scale x gradients to what is in .grad.
  virtual void backward(const Parameters& parameters, const Parameters& gradients) = 0;
  virtual void unscale(torch::optim::Optimizer& optimizer) = 0;
  virtual void step(torch::optim::Optimizer& optimizer) = 0;
  virtual void update() = 0;
  virtual void update(double scale) = 0;
  virtual double scale() = 0;
  virtual std::int64_t growth_tracker() = 0;
  virtual void clip_norm(const Parameters& parameters, double limit) = 0;
  virtual void clip_value(const Parameters& parameters, double limit) = 0;
};

/// The state of a program after a step.
struct ProgramState {
  double scale = 0;
  std::int64_t growth_tracker = 0;
  std::vector<double> weights;
};

class Program {
 public:
  static constexpr int kSteps = 30;

  Program(std::uint64_t seed, ProgramParts& parts) : random_(seed), parts_(parts) {
    const std::int64_t count = 1 + random_.pick(3);
    for (std::int64_t i = 0; i < count; ++i) {
      const int kind = static_cast<int>(random_.pick(4));
      std::vector<std::int64_t> sizes(static_cast<size_t>(1 + random_.pick(3)));
      for (auto& size : sizes) size = 1 + random_.pick(3);
      Parameters group;
      for (const auto size : sizes) group.push_back(random_.numbers(size));
      for (auto& p : group) p.requires_grad_();
      kinds_.push_back(kind);
      groups_.push_back(group);
    }
    for (size_t i = 0; i < kinds_.size(); ++i)
      optimizers_.push_back(parts_.optimizer(kinds_[i], groups_[i]));
    const double init_scale = std::ldexp(1.0, static_cast<int>(random_.pick(12)));
    parts_.start(init_scale, 1 + random_.pick(4));
  }

  ProgramState step() {
    bool inspected = false;
    for (size_t i = 0; i < kinds_.size(); ++i) {
      if (random_.pick(8) == 0) continue;
      optimizers_[i]->zero_grad(/*set_to_none=*/random_.pick(3) > 0);
      backward(groups_[i]);
      inspected |= act(*optimizers_[i], groups_[i]);
    }
    if (inspected && random_.pick(12) == 0)
      parts_.update(std::ldexp(1.0, static_cast<int>(random_.pick(12))));
    else if (inspected)
      parts_.update();
    ProgramState state{parts_.scale(), parts_.growth_tracker(), {}};
    for (const auto& group : groups_)
      for (const auto& p : group)
        for (std::int64_t k = 0; k < p.numel(); ++k) state.weights.push_back(p[k].item<double>());
    return state;
  }

 private:
  void backward(const Parameters& group) {
    Parameters gradients;
    for (const auto& p : group) gradients.push_back(random_.numbers(p.numel()));
    const std::int64_t bad = random_.pick(16);
    if (bad < 2)
      gradients[static_cast<size_t>(random_.pick(std::ssize(gradients)))][0] =
          bad == 0 ? INFINITY : NAN;
    parts_.backward(group, gradients);
  }

  bool act(torch::optim::Optimizer& optimizer, const Parameters& group) {
    const std::int64_t action = random_.pick(10);
    const double limit = 0.5 + static_cast<double>(random_.pick(8)) / 2;
    if (action == 0) return false;
    if (action <= 2) parts_.clip_norm(group, limit);
    if (action == 1) return false;
    if (action <= 3) {
      parts_.step(optimizer);
      return true;
    }
    parts_.unscale(optimizer);
    if (action == 4 || action == 7) parts_.clip_norm(group, limit);
    if (action == 5 || action == 8) parts_.clip_value(group, limit);
    if (action == 9)
      for (const auto& p : group) p.mutable_grad().nan_to_num_(1.0, 1.0, 1.0);
    if (action >= 7 || (action == 6 && random_.pick(2) == 0)) parts_.step(optimizer);
    return true;
  }

  ProgramRandom random_;
  ProgramParts& parts_;
  std::vector<int> kinds_;
  std::vector<Parameters> groups_;
  std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers_;
};

}  // namespace demi::testing
