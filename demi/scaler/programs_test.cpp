// Random programs with a scaler and 1 to 3 optimizers, in which some are unscaled and not stepped:
// against Python PyTorch (benchmarks/peers/scaler_programs.py), and against torch.amp.GradScaler's
// rules over torch::optim, for as many programs as one likes.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "demi/core/source_dir_testing.h"
#include "demi/optim/adam.h"
#include "demi/optim/adamw.h"
#include "demi/optim/backend_testing.h"
#include "demi/optim/clip.h"
#include "demi/optim/sgd.h"
#include "demi/scaler/backend_testing.h"
#include "demi/scaler/grad_scaler.h"
#include "demi/scaler/programs_testing.h"
#include "demi/step/emulated_device_testing.h"
#include "demi/weights/recorded_warnings_testing.h"

namespace demi {
namespace {

using testing::Parameters;
using testing::Program;
using testing::ProgramParts;
using testing::ProgramState;
using weights::testing::RecordedWarnings;

/// Python's torch.amp.GradScaler, read from its source, over torch::optim.
class TorchParts : public ProgramParts {
 public:
  std::unique_ptr<torch::optim::Optimizer> optimizer(int kind, const Parameters& p) override {
    using namespace torch::optim;
    if (kind == 0) return std::make_unique<SGD>(p, SGDOptions(0.125));
    if (kind == 1) return std::make_unique<SGD>(p, SGDOptions(0.125).momentum(0.875));
    if (kind == 2) return std::make_unique<Adam>(p, AdamOptions(0.01));
    return std::make_unique<AdamW>(p, AdamWOptions(0.01).weight_decay(0.1));
  }
  void start(double init_scale, std::int64_t growth_interval) override {
    scale_ = init_scale;
    interval_ = growth_interval;
  }
  void backward(const Parameters& parameters, const Parameters& gradients) override {
    at::Tensor loss = torch::zeros({});
    for (size_t i = 0; i < parameters.size(); ++i)
      loss = loss + (parameters[i] * gradients[i]).sum();
    (loss * scale_).backward();
  }
  void unscale(torch::optim::Optimizer& optimizer) override {
    bool& found = found_[&optimizer];
    for (auto& group : optimizer.param_groups()) {
      for (auto& p : group.params()) {
        if (!p.grad().defined()) continue;
        found |= !p.grad().isfinite().all().item<bool>();
        p.mutable_grad().mul_(1 / scale_);
      }
    }
  }
  void step(torch::optim::Optimizer& optimizer) override {
    if (!found_.contains(&optimizer)) unscale(optimizer);
    if (!found_[&optimizer]) optimizer.step();
  }
  void update() override {
    bool any = false;
    for (const auto& [optimizer, found] : found_) any |= found;
    found_.clear();
    tracker_ = any ? 0 : tracker_ + 1;
    if (any) scale_ *= 0.5;
    if (tracker_ < interval_) return;
    tracker_ = 0;
    scale_ *= 2;
  }
  void update(double scale) override {
    found_.clear();
    scale_ = scale;
  }
  double scale() override { return scale_; }
  std::int64_t growth_tracker() override { return tracker_; }
  void clip_norm(const Parameters& parameters, double limit) override {
    torch::nn::utils::clip_grad_norm_(parameters, limit);
  }
  void clip_value(const Parameters& parameters, double limit) override {
    torch::nn::utils::clip_grad_value_(parameters, limit);
  }

 private:
  double scale_ = 1;
  std::int64_t interval_ = 1, tracker_ = 0;
  std::map<torch::optim::Optimizer*, bool> found_;
};

/// demi's; gradients in fp32 from a backward, or in bf16 as backward in a region leaves them.
class DemiParts : public ProgramParts {
 public:
  explicit DemiParts(at::ScalarType gradients, optim::StepOptions options = {},
                     const optim::Backend& backend = optim::machine_backend())
      : dtype_(gradients), options_(options), backend_(backend) {}

  std::unique_ptr<torch::optim::Optimizer> optimizer(int kind, const Parameters& p) override {
    using namespace optim;
    using optim::testing::On;
    if (kind == 0) return std::make_unique<On<SGD>>(backend_, p, SGDOptions(0.125), options_);
    if (kind == 1)
      return std::make_unique<On<SGD>>(backend_, p, SGDOptions(0.125).momentum(0.875), options_);
    if (kind == 2) return std::make_unique<On<Adam>>(backend_, p, AdamOptions(0.01), options_);
    return std::make_unique<On<AdamW>>(backend_, p, AdamWOptions(0.01).weight_decay(0.1), options_);
  }
  void start(double init_scale, std::int64_t growth_interval) override {
    scaler_ =
        testing::ScalerOn(backend_, {.init_scale = init_scale, .growth_interval = growth_interval});
    scaler_.scale(torch::zeros({}));
  }
  void backward(const Parameters& parameters, const Parameters& gradients) override {
    at::Tensor loss = torch::zeros({});
    for (size_t i = 0; i < parameters.size(); ++i) {
      loss = loss + (parameters[i] * gradients[i]).sum();
      if (dtype_ == at::kFloat) continue;
      const at::Tensor scaled = (gradients[i] * scaler_.get_scale()).to(dtype_);
      at::Tensor& now = parameters[i].mutable_grad();  // as a second backward: in fp32
      now = now.defined() ? now.to(at::kFloat) + scaled : scaled;
    }
    if (dtype_ == at::kFloat) scaler_.scale(loss).backward();
  }
  void unscale(torch::optim::Optimizer& optimizer) override { scaler_.unscale_(optimizer); }
  void step(torch::optim::Optimizer& optimizer) override { scaler_.step(optimizer); }
  void update() override { scaler_.update(); }
  void update(double scale) override { scaler_.update(scale); }
  double scale() override { return scaler_.get_scale(); }
  std::int64_t growth_tracker() override { return scaler_.get_growth_tracker(); }
  void clip_norm(const Parameters& parameters, double limit) override {
    optim::clip_grad_norm_(parameters, limit);
  }
  void clip_value(const Parameters& parameters, double limit) override {
    optim::clip_grad_value_(parameters, limit);
  }

 private:
  at::ScalarType dtype_;
  optim::StepOptions options_;
  const optim::Backend& backend_;
  GradScaler scaler_{};
};

void expect_weights(const std::vector<double>& seen, const std::vector<double>& expected,
                    const std::string& where) {
  ASSERT_EQ(seen.size(), expected.size()) << where;
  for (size_t i = 0; i < seen.size(); ++i)
    EXPECT_NEAR(seen[i], expected[i], 2e-5 * (1 + std::abs(expected[i]))) << where << ", " << i;
}

void expect_pythons(ProgramParts& parts, const nlohmann::json& python) {
  const auto seed = python.at("seed").get<std::uint64_t>();
  Program program(seed, parts);
  for (int step = 0; step < Program::kSteps && !::testing::Test::HasFailure(); ++step) {
    const ProgramState seen = program.step();
    const std::string where = c10::str("seed ", seed, ", step ", step);
    EXPECT_EQ(std::log2(seen.scale), python.at("track").at(step).at(0).get<double>()) << where;
    EXPECT_EQ(seen.growth_tracker, python.at("track").at(step).at(1).get<std::int64_t>()) << where;
    if (step % 10 == 9)
      expect_weights(seen.weights, python.at("weights").at(step / 10).get<std::vector<double>>(),
                     where);
  }
}

const nlohmann::json& pythons_programs() {
  static const nlohmann::json all =
      nlohmann::json::parse(std::ifstream(source_dir() / "benchmarks/peers/scaler_programs.json"));
  return all.at("programs");
}

TEST(Programs, AreThoseOfPython) {
  for (const auto& python : pythons_programs()) {
    TorchParts parts;
    expect_pythons(parts, python);
  }
}

TEST(Programs, GoAsInPythonWithFp32Gradients) {
  for (const auto& python : pythons_programs()) {
    DemiParts parts(at::kFloat);
    expect_pythons(parts, python);
  }
}

// Mended 16-bit gradients are warned of.
TEST(Programs, GoAsInPythonWith16BitGradients) {
  const RecordedWarnings quiet;
  for (const auto& python : pythons_programs()) {
    DemiParts parts(at::kBFloat16);
    expect_pythons(parts, python);
  }
}

TEST(Programs, GoAsInPythonByTensorOperations) {
  const RecordedWarnings quiet;
  for (const auto& python : pythons_programs()) {
    DemiParts parts(at::kBFloat16, {.path = kernels::Path::aten});
    expect_pythons(parts, python);
  }
}

TEST(Programs, GoAsInPythonOnADevice) {
  const optim::testing::EmulatedDevice device;
  for (const auto& python : pythons_programs()) {
    DemiParts parts(at::kFloat, {}, device);
    expect_pythons(parts, python);
  }
}

unsigned from_environment(const char* name, unsigned otherwise) {
  const char* value = std::getenv(name);
  return value ? static_cast<unsigned>(std::strtoul(value, nullptr, 10)) : otherwise;
}

// DEMI_PROGRAMS programs (slow.scaler_programs: 2,000) from seed DEMI_SEED on.
TEST(Programs, GoAsTheRulesOverTorchsOptimizers) {
  const RecordedWarnings quiet;
  const unsigned count = from_environment("DEMI_PROGRAMS", 20);
  const unsigned first = from_environment("DEMI_SEED", 1000);
  for (unsigned seed = first; seed < first + count && !HasFailure(); ++seed) {
    TorchParts torchs;
    DemiParts wide(at::kFloat), narrow(at::kBFloat16);
    Program truth(seed, torchs), in_fp32(seed, wide), in_bf16(seed, narrow);
    for (int step = 0; step < Program::kSteps && !HasFailure(); ++step) {
      const ProgramState expected = truth.step();
      for (Program* program : {&in_fp32, &in_bf16}) {
        const ProgramState seen = program->step();
        const std::string where = c10::str("seed ", seed, ", step ", step);
        EXPECT_EQ(seen.scale, expected.scale) << where;
        EXPECT_EQ(seen.growth_tracker, expected.growth_tracker) << where;
        expect_weights(seen.weights, expected.weights, where);
      }
    }
  }
}

}  // namespace
}  // namespace demi
