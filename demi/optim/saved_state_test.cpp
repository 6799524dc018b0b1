// torch::load of an optimizer: whole or not at all, demi's archives and torch::optim's.
#include "demi/optim/saved_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <sstream>

#include "demi/core/error.h"
#include "demi/optim/kinds_testing.h"
#include "demi/optim/testing.h"

namespace demi::optim {
namespace {

using namespace testing;
using ::testing::HasSubstr;

template <class Optimizer>
std::string archive_of(Optimizer& optimizer) {
  std::stringstream file;
  torch::save(optimizer, file);
  return file.str();
}

void read_into(Optimizer& optimizer, const std::string& archive) {
  std::stringstream file(archive);
  torch::load(optimizer, file);
}

void step_all(torch::optim::Optimizer& optimizer, int step) {
  for (auto& group : optimizer.param_groups())
    for (auto& p : group.params()) set_grad(p, gradient(p, at::kFloat, step));
  optimizer.step();
}

/// Everything that a load may touch, printed.
std::string state_of(Optimizer& optimizer) {
  std::ostringstream all;
  for (const auto& [name, tensor] : optimizer.state_tensors()) all << name << tensor;
  for (const auto& group : optimizer.param_groups()) all << group.options().get_lr();
  return all.str();
}

void expect_refused(Optimizer& optimizer, const std::string& archive, const char* words) {
  const std::string before = state_of(optimizer);
  EXPECT_THAT(complaint([&] { read_into(optimizer, archive); }), HasSubstr(words));
  EXPECT_EQ(state_of(optimizer), before);
  step_all(optimizer, 9);  // and it goes on
}

TEST(SavedState, OfAnotherOptimizerIsRefusedWhole) {
  for (const Kind& kind : kKinds) {
    SCOPED_TRACE(kind.name);
    for (const Kind& other : kKinds) {
      const at::Tensor p = parameter({4}), q = parameter({4});
      const auto mine = kind.make({p}), theirs = other.make({q});
      step_all(*mine, 0);
      step_all(*theirs, 1);
      const auto is_sgd = [](const Kind& one) {
        return one.id == KindId::kSgd || one.id == KindId::kMomentum;
      };
      if (kind.id == other.id || (is_sgd(kind) && is_sgd(other))) {
        EXPECT_NO_THROW(read_into(*mine, archive_of(*theirs))) << other.name;
        EXPECT_EQ(state_of(*mine), state_of(*theirs));
      } else {
        expect_refused(*mine, archive_of(*theirs), "another optimizer");
      }
    }
  }
}

TEST(SavedState, OfAnotherModelIsRefusedWhole) {
  const at::Tensor p = parameter({4}), q = parameter({4}), r = parameter({5});
  AdamW one({p}), two({q, parameter({4})}), longer({r});
  for (AdamW* each : {&one, &two, &longer}) step_all(*each, 0);
  expect_refused(one, archive_of(two), "number of parameters");
  expect_refused(one, archive_of(longer), "does not fit its parameter");
  AdamW groups({torch::optim::OptimizerParamGroup({q}), torch::optim::OptimizerParamGroup({r})});
  expect_refused(one, archive_of(groups), "parameter groups");
  torch::nn::Linear linear(2, 2);
  std::stringstream file;
  torch::save(linear, file);
  expect_refused(one, file.str(), "not that of an optimizer");
}

TEST(SavedState, HoldsScheduledRates) {
  SGD mine({parameter({4})}, SGDOptions(1)), yours({parameter({4})}, SGDOptions(1));
  mine.set_scheduled_rates(0, {1, 10});
  yours.load_state_tensors(mine.state_tensors());
  const at::Tensor rates = torch::tensor({1.0, 10.0}, torch::kDouble);
  EXPECT_TRUE(torch::equal(yours.state_tensors().at("scheduled_rates.0"), rates));
  SGD archived({parameter({4})}, SGDOptions(1));
  read_into(archived, archive_of(mine));
  EXPECT_TRUE(torch::equal(archived.state_tensors().at("scheduled_rates.0"), rates));
}

TEST(SavedState, TensorsOfAnotherRuleAreRefusedWhole) {
  const at::Tensor p = parameter({4}), q = parameter({4});
  AdamW mine({p});
  Lion lion({q});
  step_all(mine, 0);
  step_all(lion, 0);
  const std::string before = state_of(mine);
  EXPECT_THAT(complaint([&] { mine.load_state_tensors(lion.state_tensors()); }),
              HasSubstr("exp_avg_sq"));
  auto broken = mine.state_tensors();
  broken["0.momentum_buffer"] = torch::zeros(4);
  EXPECT_THAT(complaint([&] { mine.load_state_tensors(broken); }), HasSubstr("momentum_buffer"));
  broken = mine.state_tensors();
  broken["0.exp_avg"] = torch::zeros(4, at::kLong);
  EXPECT_THAT(complaint([&] { mine.load_state_tensors(broken); }), HasSubstr("floating point"));
  for (const double bad : {std::nan(""), 1e300, 0.5}) {
    broken = mine.state_tensors();
    broken["0.step"] = torch::full({}, bad, at::kDouble);
    EXPECT_THAT(complaint([&] { mine.load_state_tensors(broken); }), HasSubstr("count"));
  }
  EXPECT_EQ(state_of(mine), before);
}

/// A run of torch::optim's, saved after three steps and gone on with by demi's: as if torch's had.
template <class Theirs, class Mine, class TheirOptions>
void expect_to_go_on(const TheirOptions& options) {
  const at::Tensor p = parameter({6}), q = parameter({6}), r = parameter({2, 3}),
                   s = parameter({2, 3}), unused = parameter({3}), unused_too = parameter({3});
  Theirs theirs({q, s, unused_too}, options);
  const auto step = [](torch::optim::Optimizer& optimizer, const at::Tensor& a, const at::Tensor& b,
                       int i) {
    set_grad(a, gradient(a, at::kFloat, i));
    set_grad(b, gradient(b, at::kFloat, i));
    optimizer.step();
  };
  constexpr int kSteps = 3;
  for (int i = 0; i < kSteps; ++i) step(theirs, q, s, i);
  {
    const at::NoGradGuard no_grad;
    p.copy_(q);
    r.copy_(s);
  }
  Mine mine({p, r, unused});
  read_into(mine, archive_of(theirs));
  EXPECT_EQ(mine.param_groups()[0].options().get_lr(), options.lr());
  const auto state = mine.state_tensors();  // SGD's has no counts
  const auto count = state.find("0.step");
  EXPECT_EQ(state.at("taken").template item<int64_t>(),
            count == state.end() ? 0 : count->second.template item<int64_t>());
  for (int i = kSteps; i < 8; ++i) {
    step(theirs, q, s, i);
    step(mine, p, r, i);
  }
  EXPECT_TRUE(at::allclose(p, q, 1e-5, 1e-6)) << p << q;
  EXPECT_TRUE(at::allclose(r, s, 1e-5, 1e-6));
}

TEST(SavedState, TorchsOwnArchivesAreTaken) {
  expect_to_go_on<torch::optim::Adam, Adam>(torch::optim::AdamOptions(0.05).weight_decay(0.1));
  expect_to_go_on<torch::optim::Adam, Adam>(torch::optim::AdamOptions(0.05).amsgrad(true));
  expect_to_go_on<torch::optim::AdamW, AdamW>(torch::optim::AdamWOptions(0.05).betas({0.8, 0.95}));
  expect_to_go_on<torch::optim::SGD, SGD>(torch::optim::SGDOptions(0.05));
  expect_to_go_on<torch::optim::SGD, SGD>(
      torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(0.1));
}

TEST(SavedState, TorchsArchivesOfOthersAreRefused) {
  const at::Tensor p = parameter({4}), q = parameter({4});
  AdamW adamw({p});
  step_all(adamw, 0);
  torch::optim::SGD sgd({q}, torch::optim::SGDOptions(0.1).momentum(0.9));
  torch::optim::RMSprop rmsprop({q});
  for (torch::optim::Optimizer* other : {static_cast<torch::optim::Optimizer*>(&sgd),
                                         static_cast<torch::optim::Optimizer*>(&rmsprop)}) {
    step_all(*other, 0);
    expect_refused(adamw, archive_of(*other), "another optimizer");
  }
}

TEST(SavedState, OptionsStayWhereTheyAre) {
  const at::Tensor p = parameter({4}), q = parameter({4});
  SGD mine({p}, SGDOptions(0.5)), other({q}, SGDOptions(0.25));
  auto& options = static_cast<SGDOptions&>(mine.param_groups()[0].options());
  read_into(mine, archive_of(other));
  EXPECT_EQ(options.lr(), 0.25);
}

}  // namespace
}  // namespace demi::optim
