// Parameters whose memory moves between steps: set_data, torch::load, Module::to. Every optimizer,
// dtype and path against the optimizers' formulas in fp64.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>
#include <sstream>

#include "demi/kernels/path.h"
#include "demi/optim/clip.h"
#include "demi/optim/formula_testing.h"
#include "demi/optim/kinds_testing.h"
#include "demi/optim/testing.h"
#include "demi/step/pending_step.h"

namespace demi::optim {
namespace {

using namespace testing;

constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};

bool is_narrow(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }

/// One step from rounding the truth to this dtype, or from fp32's arithmetic.
double tolerance(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? 0x1p-7 : dtype == at::kHalf ? 0x1p-10 : 2e-5;
}

struct Network : torch::nn::Module {
  explicit Network(at::ScalarType dtype) {
    a = register_parameter("a", parameter({5}).detach().to(dtype));
    b = register_parameter("b", parameter({3, 2}, at::kFloat, 2).detach().to(dtype));
  }
  at::Tensor a, b;
};

/// A training run that is moved about, and what the formula says of each parameter.
class Walk {
 public:
  Walk(unsigned seed, const Kind& kind, StepOptions options)
      : random_(seed), kind_(kind), options_(options) {
    dtype_ = kDtypes[random_() % std::size(kDtypes)];
    network_ = std::make_shared<Network>(dtype_);
    make_optimizer();
    for (int i = 0; i < 2; ++i) truth_.emplace_back(kind.id, now(i));
  }

  void go(int actions) {
    for (int i = 0; i < actions && !::testing::Test::HasFailure(); ++i) act(i);
  }

 private:
  at::Tensor at(int i) const { return i == 0 ? network_->a : network_->b; }
  at::Tensor now(int i) const { return at(i).detach().to(at::kDouble).flatten().clone(); }

  void make_optimizer() { optimizer_ = kind_.make({network_->a, network_->b}, options_); }

  at::Tensor values(at::IntArrayRef shape) {
    at::Tensor drawn = torch::empty(shape, at::kDouble);
    double* each = drawn.data_ptr<double>();
    for (int64_t i = 0; i < drawn.numel(); ++i)
      each[i] = (random_() % 2 ? 1 : -1) * (0.25 + static_cast<double>(random_() % 64) / 32);
    return drawn;
  }

  void act(int i) {
    trace_ += c10::str(" ", i, ":");
    switch (random_() % 8) {
      case 0:
        return set_data();
      case 1:
        return write();
      case 2:
        return load();
      case 3:
        return to(kDtypes[random_() % std::size(kDtypes)]);
      case 4:
        return reload_optimizer();
      default:
        return step();
    }
  }

  void set_data() {
    trace_ += "set_data";
    for (int i = 0; i < 2; ++i) {
      at(i).set_data(values(at(i).sizes()).to(dtype_));
      truth_[i].weight = now(i);
    }
  }
  void write() {
    trace_ += "write";
    const at::NoGradGuard no_grad;
    at(1).copy_(values(at(1).sizes()));
    truth_[1].weight = now(1);
  }
  void load() {
    trace_ += "load";
    auto other = std::make_shared<Network>(dtype_);
    {
      const at::NoGradGuard no_grad;
      other->a.copy_(values({5}));
    }
    std::stringstream file;
    torch::save(other, file);
    torch::load(network_, file);
    for (int i = 0; i < 2; ++i) truth_[i].weight = now(i);
  }
  void to(at::ScalarType dtype) {
    trace_ += c10::toString(dtype);
    if (dtype == dtype_) return;
    optimizer_->zero_grad();
    network_->to(dtype);
    // A master has digits that its 16-bit parameter lacks, and keeps them if the parameter is given
    // the value that it has already or another 16-bit dtype. Decay carries them into the moments.
    if (is_narrow(dtype_)) slack_ = 1e-3;
    dtype_ = dtype;
    for (int i = 0; i < 2; ++i) truth_[i].weight = now(i);
  }
  void reload_optimizer() {
    trace_ += "reload";
    std::stringstream file;
    torch::save(*optimizer_, file);
    make_optimizer();
    torch::load(*optimizer_, file);
  }
  void step() {
    const at::ScalarType wide = dtype_ == at::kDouble ? at::kDouble : at::kFloat;
    const at::ScalarType gradient = random_() % 2 ? wide : at::kBFloat16;
    trace_ += c10::str("step ", c10::toString(gradient));
    for (int i = 0; i < 2; ++i) set_grad(at(i), values(at(i).sizes()).to(gradient));
    optimizer_->step();
    for (int i = 0; i < 2; ++i) {
      truth_[i].step(at(i).grad().to(at::kDouble).flatten());
      const double slack = std::max(tolerance(dtype_), slack_);
      EXPECT_TRUE(at::allclose(now(i), truth_[i].weight, slack, slack))
          << kind_.name << ", " << c10::toString(dtype_) << ", parameter " << i << trace_
          << ", off by\n"
          << (now(i) - truth_[i].weight) * 1e6 << "* 1e-6, of\n"
          << truth_[i].weight;
      // Errors of rounding must not add up; a master keeps its own.
      if (!is_narrow(dtype_)) truth_[i].weight = now(i);
    }
  }

  std::mt19937 random_;
  Kind kind_;
  StepOptions options_;
  at::ScalarType dtype_;
  double slack_ = 0;
  std::shared_ptr<Network> network_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<Formula> truth_;
  std::string trace_;
};

unsigned from_environment(const char* name, unsigned otherwise) {
  const char* value = std::getenv(name);
  return value ? static_cast<unsigned>(std::strtoul(value, nullptr, 10)) : otherwise;
}

// DEMI_MOVES walks a kind and path (slow.moves: 200) from seed DEMI_SEED on.
TEST(Moves, EveryOptimizerFollowsItsParametersOnEveryPath) {
  const unsigned walks = from_environment("DEMI_MOVES", 4), seed = from_environment("DEMI_SEED", 1);
  for (const auto path : {kernels::Path::reference, kernels::Path::aten}) {
    for (const Kind& kind : kKinds) {
      SCOPED_TRACE(kind.name);
      for (unsigned w = 0; w < walks; ++w) {
        Walk(seed + w, kind, {.path = path}).go(24);
        ASSERT_FALSE(HasFailure()) << "path " << kernels::name_of(path) << ", seed " << seed + w;
      }
    }
  }
}

TEST(Moves, TheKernelsOfThisProcessorToo) {
  const unsigned walks = from_environment("DEMI_MOVES", 4), seed = from_environment("DEMI_SEED", 1);
  for (const Kind& kind : kKinds)
    for (unsigned w = 0; w < walks; ++w) Walk(seed + w, kind, {}).go(24);
}

// The cases of the defect, one by one.
TEST(Moves, SetDataIsFollowed) {
  for (const auto dtype : kDtypes) {
    for (const auto path : {kernels::Path::reference, kernels::Path::aten}) {
      const at::Tensor p = torch::zeros(1, dtype).requires_grad_();
      SGD sgd({p}, SGDOptions(0.5), {.path = path});
      set_grad(p, torch::ones(1, dtype));
      sgd.step();
      EXPECT_EQ(p.item<double>(), -0.5);
      for (int again = 0; again < 2; ++again) {
        p.set_data(torch::full({1}, 8, dtype));
        sgd.step();
        EXPECT_EQ(p.item<double>(), 7.5) << c10::toString(dtype) << kernels::name_of(path);
      }
    }
  }
}

TEST(Moves, AMasterGoesWithItsDtype) {
  const at::Tensor p = torch::zeros(1, at::kBFloat16).requires_grad_();
  SGD sgd({p}, SGDOptions(0.5));
  set_grad(p, torch::ones(1));
  sgd.step();
  EXPECT_EQ(sgd.state_tensors().count("0.master"), 1U);
  p.set_data(torch::full({1}, 4.F));
  set_grad(p, torch::ones(1));
  sgd.step();
  EXPECT_EQ(p.item<float>(), 3.5);
  EXPECT_EQ(sgd.state_tensors().count("0.master"), 0U);
  p.set_data(torch::full({1}, 2.0, at::kDouble));
  set_grad(p, torch::ones(1));
  sgd.step();
  EXPECT_EQ(p.item<double>(), 1.5);
}

TEST(Moves, AMasterFollowsItsParameterWithinOneMemory) {
  const at::Tensor both = torch::tensor({0.F, 8.F}).to(at::kBFloat16);
  const at::Tensor p = both.narrow(0, 0, 1).detach().requires_grad_();
  SGD sgd({p}, SGDOptions(0.5));
  set_grad(p, torch::ones(1));
  sgd.step();
  p.set_data(both.narrow(0, 1, 1));
  sgd.step();
  EXPECT_EQ(p.item<float>(), 7.5);
}

TEST(Moves, TheMemoryOfBeforeIsFreed) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const at::Tensor p = torch::zeros(1, dtype).requires_grad_();
    SGD sgd({p}, SGDOptions(0.5));
    set_grad(p, torch::ones(1, dtype));
    sgd.step();
    const auto before = p.storage().getWeakStorageImpl();
    p.set_data(torch::ones(1, dtype));
    sgd.step();
    EXPECT_TRUE(before.expired()) << dtype;
  }
}

TEST(Moves, WhatIsRecordedStaysWithAMovedParameter) {
  for (const auto path : {kernels::Path::reference, kernels::Path::aten}) {
    const at::Tensor p = torch::zeros(1, at::kDouble).requires_grad_();
    const at::Tensor late = torch::zeros(1).requires_grad_();
    SGD sgd({p, late}, SGDOptions(1), {.path = path});
    set_grad(p, torch::full({1}, 8, at::kDouble));
    clip_grad_value_({p}, 1);
    p.set_data(torch::full({1}, 4, at::kDouble));
    sgd.step();
    EXPECT_EQ(p.item<double>(), 3);
    set_grad(p, torch::full({1}, 8, at::kDouble));
    EXPECT_TRUE(sgd.pending().clip_norm(2));
    p.set_data(torch::full({1}, 4, at::kDouble));  // the table is built anew
    set_grad(late, torch::full({1}, 8.F));         // and grows
    sgd.step();
    EXPECT_NEAR(p.item<double>(), 2, 1e-5);
    EXPECT_EQ(late.item<float>(), -8);  // had no gradient when the clip was recorded
  }
}

}  // namespace
}  // namespace demi::optim
