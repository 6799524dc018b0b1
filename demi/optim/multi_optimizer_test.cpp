// Groups with different rules in one optimizer. The truth for each group is torch::optim's
// optimizer of its rule over that group alone, with the clip factor of the norm over all groups.
#include "demi/optim/multi_optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>

#include "demi/optim/all.h"
#include "demi/optim/clip.h"
#include "demi/optim/testing.h"
#include "demi/step/emulated_device_testing.h"

namespace demi::optim {
namespace {

using namespace testing;
using ::testing::HasSubstr;
using Groups = std::vector<torch::optim::OptimizerParamGroup>;
using Tensors = std::vector<at::Tensor>;

/// On a backend of the test's choice.
class OnBackend : public MultiOptimizer {
 public:
  OnBackend(const Groups& groups, const Backend& backend, StepOptions step = {})
      : MultiOptimizer(groups, step, backend) {}
};

/// Two parameters of each rule: the second has a block more than 16,384 elements.
Tensors parameters() {
  return {parameter({7, 3}), parameter({130, 131}, at::kFloat, 2), parameter({33}, at::kFloat, 3),
          parameter({129, 131}, at::kFloat, 4)};
}

template <class Options>
void add(Groups& groups, Tensors parameters, const Options& options) {
  groups.emplace_back(std::move(parameters), std::make_unique<Options>(options));
}

SGDOptions sgd() { return SGDOptions(0.1).momentum(0.9).weight_decay(0.01); }
AdamWOptions adamw() { return AdamWOptions(0.01).weight_decay(0.1); }

/// SGD over the even parameters, AdamW over the odd ones.
Groups sgd_and_adamw(const Tensors& p) {
  Groups groups;
  add(groups, {p[0], p[2]}, sgd());
  add(groups, {p[1], p[3]}, adamw());
  return groups;
}

void set_grads(const Tensors& p, int step, at::ScalarType dtype = at::kFloat) {
  for (const auto& one : p) set_grad(one, gradient(one, dtype, step));
}

TEST(MultiOptimizer, EachGroupIsUpdatedByItsOwnRule) {
  for (const char* path : {"", "reference", "aten"}) {
    const ScopedEnvironment forced("DEMI_KERNELS", path);
    const Tensors p = parameters(), q = parameters();
    MultiOptimizer mine(sgd_and_adamw(p));
    torch::optim::SGD theirs({q[0], q[2]},
                             torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
    torch::optim::AdamW also({q[1], q[3]}, torch::optim::AdamWOptions(0.01).weight_decay(0.1));
    for (int step = 0; step < 5; ++step) {
      for (const auto& all : {p, q}) set_grads(all, step);
      clip_grad_norm_(p, 0.5);
      torch::nn::utils::clip_grad_norm_(q, 0.5);
      mine.step();
      theirs.step();
      also.step();
    }
    for (size_t i = 0; i < p.size(); ++i)
      EXPECT_TRUE(at::allclose(p[i], q[i], 1e-5, 1e-6)) << path << " parameter " << i;
    EXPECT_EQ(mine.rule_name(), "SGD, AdamW");
  }
}

TEST(MultiOptimizer, GivesTheBitsOfOneOptimizerForEachRule) {
  const Tensors p = parameters(), q = parameters();
  MultiOptimizer mine(sgd_and_adamw(p));
  SGD one({q[0], q[2]}, sgd());
  AdamW other({q[1], q[3]}, adamw());
  for (int step = 0; step < 5; ++step) {
    for (const auto& all : {p, q}) set_grads(all, step, at::kBFloat16);
    mine.step();
    one.step();
    other.step();
  }
  for (size_t i = 0; i < p.size(); ++i) EXPECT_TRUE(at::equal(p[i], q[i])) << "parameter " << i;
}

TEST(MultiOptimizer, AnInfInOneGroupSkipsAll) {
  for (const char* path : {"", "aten"}) {
    const ScopedEnvironment forced("DEMI_KERNELS", path);
    for (size_t bad = 0; bad < 4; ++bad) {
      const Tensors p = parameters(), before = parameters();
      MultiOptimizer mine(sgd_and_adamw(p));
      set_grads(p, 1);
      p[bad].mutable_grad().flatten()[2] = kInf;
      mine.step();
      EXPECT_TRUE(mine.last_step().skipped()) << path << bad;
      for (size_t i = 0; i < p.size(); ++i) EXPECT_TRUE(at::equal(p[i], before[i])) << path << bad;
      EXPECT_EQ(mine.steps_taken(), 0);
    }
  }
}

TEST(MultiOptimizer, TheNormIsThatOfAllGroups) {
  const Tensors p = parameters();
  MultiOptimizer mine(sgd_and_adamw(p));
  set_grads(p, 3);
  double squares = 0;
  for (const auto& one : p) squares += one.grad().to(at::kDouble).square().sum().item<double>();
  mine.step();
  EXPECT_NEAR(mine.last_step().grad_norm().value(), std::sqrt(squares), 1e-4);
}

TEST(MultiOptimizer, ADeviceDecidesOnceForAllRules) {
  const testing::EmulatedDevice device;
  const Tensors p = parameters(), q = parameters();
  Groups groups = sgd_and_adamw(p), same = sgd_and_adamw(q);
  OnBackend mine(groups, device);
  MultiOptimizer host(same);
  for (int step = 0; step < 4; ++step) {
    for (const auto& all : {p, q}) set_grads(all, step, at::kHalf);
    if (step == 2)
      for (const auto& all : {p, q}) all[3].mutable_grad().flatten()[16890] = kInf;
    const auto launches = testing::EmulatedDevice::launches();
    mine.step();
    // measure, decide, and an update for each rule.
    EXPECT_EQ(testing::EmulatedDevice::launches() - launches, 4);
    host.step();
    EXPECT_EQ(mine.last_step().skipped(), step == 2);
  }
  for (size_t i = 0; i < p.size(); ++i) EXPECT_TRUE(at::equal(p[i], q[i])) << "parameter " << i;
}

TEST(MultiOptimizer, ADeviceLaunchesARuleOnceForAllItsGroups) {
  const testing::EmulatedDevice device;
  const Tensors p = parameters();
  Groups groups;
  add(groups, {p[0]}, sgd());
  add(groups, {p[1]}, adamw());
  add(groups, {p[2]}, sgd());
  add(groups, {p[3]}, adamw());
  OnBackend mine(groups, device);
  set_grads(p, 1);
  const auto launches = testing::EmulatedDevice::launches();
  mine.step();
  EXPECT_EQ(testing::EmulatedDevice::launches() - launches, 4);
}

TEST(MultiOptimizer, ADeviceRunsATrustRatioBesideOtherRules) {
  const testing::EmulatedDevice device;
  const Tensors p = parameters(), q = parameters(), r = parameters();
  const auto groups_of = [](const Tensors& all) {
    Groups groups = sgd_and_adamw({all[0], all[1], all[2], parameter({2}, at::kFloat, 9)});
    add(groups, {all[3]}, LAMBOptions(0.1).weight_decay(0.1));
    return groups;
  };
  OnBackend mine(groups_of(p), device);
  MultiOptimizer host(groups_of(q));
  LAMB lamb({r[3]}, LAMBOptions(0.1).weight_decay(0.1));
  for (int step = 0; step < 3; ++step) {
    for (const auto& all : {p, q, r}) set_grads(all, step);
    mine.step();
    host.step();
    lamb.step();
  }
  for (size_t i = 0; i < p.size(); ++i) EXPECT_TRUE(at::equal(p[i], q[i])) << "parameter " << i;
  EXPECT_TRUE(at::equal(q[3], r[3]));
}

TEST(MultiOptimizer, TakesLibTorchsOptionsByTheirType) {
  const Tensors p = parameters();
  Groups groups;
  add(groups, {p[0]}, torch::optim::SGDOptions(0.1).momentum(0.9));
  add(groups, {p[1]}, torch::optim::AdamOptions(0.1));
  add(groups, {p[2]}, torch::optim::RMSpropOptions(0.1));
  add(groups, {p[3]}, LionOptions(0.1));
  MultiOptimizer mine(groups);
  EXPECT_EQ(mine.rule_name(), "SGD, Adam, RMSprop, Lion");
  set_grads(p, 1);
  mine.step();
  const auto state = mine.state_tensors();
  EXPECT_TRUE(state.contains("0.momentum_buffer"));
  EXPECT_TRUE(state.contains("1.exp_avg_sq"));
  EXPECT_TRUE(state.contains("2.square_avg"));
  EXPECT_TRUE(state.contains("3.exp_avg"));
}

std::string archive_of(const Optimizer& optimizer) {
  std::ostringstream text;
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  archive.save_to(text);
  return text.str();
}

void load(Optimizer& optimizer, const std::string& text) {
  std::istringstream stream(text);
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  optimizer.load(archive);
}

TEST(MultiOptimizer, GoesOnFromItsArchiveWithTheSameBits) {
  const Tensors p = parameters();
  MultiOptimizer mine(sgd_and_adamw(p));
  for (int step = 0; step < 3; ++step) {
    set_grads(p, step);
    mine.step();
  }
  Tensors q;
  for (const auto& one : p) q.push_back(one.detach().clone().requires_grad_());
  Groups groups;
  add(groups, {q[0], q[2]}, SGDOptions(7));
  add(groups, {q[1], q[3]}, AdamWOptions(7));
  MultiOptimizer other(groups);
  load(other, archive_of(mine));
  EXPECT_EQ(other.param_groups()[1].options().get_lr(), 0.01);
  for (int step = 3; step < 6; ++step) {
    for (const auto& all : {p, q}) set_grads(all, step);
    mine.step();
    other.step();
  }
  for (size_t i = 0; i < p.size(); ++i) EXPECT_TRUE(at::equal(p[i], q[i])) << "parameter " << i;
}

TEST(MultiOptimizer, OneRuleIsTheStateOfThatClass) {
  const Tensors p = parameters(), q = parameters();
  Groups groups;
  add(groups, p, adamw());
  MultiOptimizer mine(groups);
  AdamW single(q, adamw());
  EXPECT_EQ(mine.rule_name(), "AdamW");
  set_grads(q, 1);
  single.step();
  load(mine, archive_of(single));
  load(single, archive_of(mine));
  EXPECT_EQ(mine.steps_taken(), 1);
}

TEST(MultiOptimizer, RefusesTheStateOfOtherRules) {
  const Tensors p = parameters(), q = parameters();
  MultiOptimizer mine(sgd_and_adamw(p));
  Groups groups;
  add(groups, {q[0], q[2]}, AdamOptions(0.1));
  add(groups, {q[1], q[3]}, adamw());
  MultiOptimizer other(groups);
  for (const auto& all : {p, q}) set_grads(all, 1);
  mine.step();
  other.step();
  const std::string message = complaint([&] { load(other, archive_of(mine)); });
  EXPECT_THAT(message, HasSubstr("SGD, AdamW"));
  EXPECT_THAT(message, HasSubstr("accepted: Adam, AdamW"));
  EXPECT_THAT(complaint([&] { other.load_state_tensors(mine.state_tensors()); }),
              HasSubstr("0.momentum_buffer"));
  EXPECT_EQ(other.state_tensors().count("0.exp_avg"), 1U) << "unchanged";
}

TEST(MultiOptimizer, AChangedRuleNeedsAnErasedState) {
  const Tensors p = parameters();
  MultiOptimizer mine(sgd_and_adamw(p));
  set_grads(p, 1);
  mine.step();
  mine.param_groups()[0].set_options(std::make_unique<LionOptions>(0.1));
  EXPECT_THAT(complaint([&] { mine.step(); }), HasSubstr("momentum_buffer"));
  for (const size_t i : {0, 2}) mine.state().erase(p[i].unsafeGetTensorImpl());
  const at::Tensor before = p[0].detach().clone();
  mine.step();
  EXPECT_EQ(mine.rule_name(), "Lion, AdamW");
  EXPECT_TRUE(at::allclose((p[0] - before).abs(), torch::full({7, 3}, 0.1), 1e-4));
}

TEST(MultiOptimizer, RefusesGroupsWithoutARule) {
  const Tensors p = parameters();
  EXPECT_THAT(complaint([&] { MultiOptimizer({torch::optim::OptimizerParamGroup(p)}); }),
              HasSubstr("no options"));
  Groups groups;
  add(groups, {p[0]}, sgd());
  groups.emplace_back(Tensors{p[1]});
  EXPECT_THAT(complaint([&] { MultiOptimizer{groups}; }), HasSubstr("group 1"));
  groups.pop_back();
  add(groups, {p[1]}, torch::optim::LBFGSOptions(0.1));
  EXPECT_THAT(complaint([&] { MultiOptimizer{groups}; }), HasSubstr("LBFGSOptions"));
  EXPECT_THAT(complaint([] { MultiOptimizer{Groups{}}; }), HasSubstr("no options"));
}

TEST(MultiOptimizer, AClassOfOneRuleStillRefusesOthers) {
  const Tensors p = parameters();
  const std::string message = complaint([&] { AdamW(sgd_and_adamw(p), AdamWOptions()); });
  EXPECT_THAT(message, HasSubstr("SGDOptions"));
  EXPECT_THAT(message, HasSubstr("MultiOptimizer"));
}

TEST(MultiOptimizer, AnAddedGroupBringsItsRule) {
  const Tensors p = parameters();
  Groups groups;
  add(groups, {p[0]}, sgd());
  MultiOptimizer mine(groups);
  set_grads(p, 1);
  mine.step();
  mine.add_param_group({{p[1]}, std::make_unique<AdamWOptions>(adamw())});
  EXPECT_THROW(mine.add_param_group({{p[2]}}), UsageError);
  mine.step();
  EXPECT_EQ(mine.rule_name(), "SGD, AdamW");
  EXPECT_TRUE(mine.state_tensors().contains("1.exp_avg"));
}

}  // namespace
}  // namespace demi::optim
