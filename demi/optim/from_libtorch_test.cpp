// A program that used torch::optim's optimizers does with demi's what it did: parameter groups with
// LibTorch's options, casts of options, states that it puts in place itself, moves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/version.h>

#include <optional>
#include <sstream>

#include "demi/optim/adam.h"
#include "demi/optim/adamw.h"
#include "demi/optim/clip.h"
#include "demi/optim/lamb.h"
#include "demi/optim/lion.h"
#include "demi/optim/rmsprop.h"
#include "demi/optim/sgd.h"
#include "demi/optim/testing.h"
#include "demi/step/ownership.h"
#include "demi/step/pending_step.h"
#include "demi/weights/weights.h"

namespace demi::optim {
namespace {

using namespace testing;
using ::testing::HasSubstr;
using torch::optim::OptimizerParamGroup;

/// LibTorch merges a group's options with the defaults from 2.15 on.
constexpr bool kTorchMerges = TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15;

at::Tensor leaf(double value) { return torch::full({2}, value).requires_grad_(); }

template <class Options>
std::vector<OptimizerParamGroup> group_of(const at::Tensor& parameter, const Options& options) {
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{parameter}, std::make_unique<Options>(options));
  return groups;
}

void step(torch::optim::Optimizer& optimizer, int i) {
  for (const auto& group : optimizer.param_groups())
    for (const auto& p : group.params()) set_grad(p, gradient(p, at::kFloat, i));
  optimizer.step();
}

/// The same steps of both, of parameters that are equal before.
void expect_same_steps(torch::optim::Optimizer& mine, torch::optim::Optimizer& theirs) {
  for (int i = 0; i < 4; ++i) {
    step(mine, i);
    step(theirs, i);
  }
  for (size_t g = 0; g < mine.param_groups().size(); ++g)
    for (size_t i = 0; i < mine.param_groups()[g].params().size(); ++i)
      EXPECT_TRUE(at::allclose(mine.param_groups()[g].params()[i],
                               theirs.param_groups()[g].params()[i], 1e-5, 1e-6));
}

/// Blocks of the size of LibTorch's options that hold ones, so that a byte which is read from
/// beyond them is not 0 by chance.
void soil_the_heap() {
  std::vector<std::unique_ptr<std::array<unsigned char, 56>>> blocks(200);
  for (auto& block : blocks) {
    block = std::make_unique<std::array<unsigned char, 56>>();
    block->fill(1);
  }
}

TEST(FromLibTorch, GroupsWithLibTorchsOptionsAreTheOptionsOfTheSameName) {
  for (int i = 0; i < 20; ++i) {
    soil_the_heap();
    const at::Tensor p = leaf(1);
    Adam adam(group_of(p, torch::optim::AdamOptions(0.25)));
    set_grad(p, torch::ones(2));
    adam.step();
    ASSERT_NEAR(p[0].item<float>(), 0.75, 1e-6);  // Adam's first step is the rate, downhill
  }
  const at::Tensor p = parameter({3}), q = parameter({3});
  {
    const auto options = torch::optim::AdamOptions(0.1).betas({0.8, 0.9}).amsgrad(true);
    Adam mine(group_of(p, options));
    torch::optim::Adam theirs(group_of(q, options));
    expect_same_steps(mine, theirs);
  }
  {
    const auto options = torch::optim::AdamWOptions(0.1).eps(1e-3).weight_decay(0.3);
    AdamW mine(group_of(p, options));
    torch::optim::AdamW theirs(group_of(q, options));
    expect_same_steps(mine, theirs);
  }
  {
    const auto options = torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true);
    SGD mine(group_of(p, options), SGDOptions(1));
    torch::optim::SGD theirs(group_of(q, options), torch::optim::SGDOptions(1));
    expect_same_steps(mine, theirs);
  }
}

TEST(FromLibTorch, DefaultsMayBeLibTorchs) {
  const at::Tensor p = parameter({3}), q = parameter({3});
  const auto options = torch::optim::AdamOptions(0.1).weight_decay(0.2);
  Adam mine({p}, options);
  torch::optim::Adam theirs({q}, options);
  expect_same_steps(mine, theirs);
}

TEST(FromLibTorch, OptionsOfAnotherOptimizerAreNamed) {
  const at::Tensor p = leaf(1), q = leaf(1);
  EXPECT_THAT(complaint([&] { Adam(group_of(p, torch::optim::SGDOptions(0.5))); }),
              AllOf(HasSubstr("optim.Adam"), HasSubstr("torch::optim::SGDOptions"),
                    HasSubstr("torch::optim::AdamOptions")));
  EXPECT_THAT(complaint([&] { SGD(group_of(p, torch::optim::AdamOptions(0.5)), SGDOptions(1)); }),
              HasSubstr("torch::optim::AdamOptions"));
  EXPECT_THAT(complaint([&] { AdamW(group_of(p, AdamOptions(0.5))); }),
              HasSubstr("demi::optim::AdamOptions"));
  EXPECT_THAT(complaint([&] { Lion(group_of(p, torch::optim::AdamOptions(0.5))); }),
              HasSubstr("demi::optim::LionOptions"));
  AdamW late({p}, AdamWOptions(0.5));
  EXPECT_THAT(
      complaint([&] { late.add_param_group(group_of(q, torch::optim::RMSpropOptions(1))[0]); }),
      HasSubstr("RMSprop"));
  EXPECT_EQ(late.param_groups().size(), 1U);
  late.param_groups()[0].set_options(std::make_unique<torch::optim::SGDOptions>(1));
  set_grad(p, torch::ones(2));
  EXPECT_THAT(complaint([&] { late.step(); }), HasSubstr("torch::optim::SGDOptions"));
  EXPECT_EQ(p[0].item<float>(), 1);
}

TEST(FromLibTorch, OptionsThatAreSetLaterAreTaken) {
  const at::Tensor p = leaf(1);
  SGD sgd({p}, SGDOptions(1));
  sgd.param_groups()[0].set_options(std::make_unique<torch::optim::SGDOptions>(0.25));
  for (const double expected : {0.75, 0.5}) {
    set_grad(p, torch::ones(2));
    sgd.step();
    EXPECT_EQ(p[0].item<double>(), expected);
    EXPECT_EQ(sgd.group_numbers()[0].at("lr"), 0.25);
  }
  std::stringstream file;
  torch::save(sgd, file);
  torch::load(sgd, file);
  EXPECT_EQ(sgd.param_groups()[0].options().get_lr(), 0.25);
}

/// The options of a group made of `given`, in the constructor and late, under these defaults.
template <class Optimizer, class Options, class Defaults>
void expect_merged(const Options& given, const Defaults& defaults, const StateDict& expected) {
  const at::Tensor p = leaf(1), q = leaf(1);
  Optimizer optimizer(group_of(p, given), defaults);
  optimizer.add_param_group(group_of(q, given)[0]);
  for (const StateDict& numbers : optimizer.group_numbers())
    for (const auto& [name, value] : expected) EXPECT_EQ(numbers.at(name), value) << name;
}

// LibTorch 2.15: a field with the value of the options' constructor inherits.
TEST(FromLibTorch, WhatAGroupDoesNotSetIsTheOptimizers) {
  using TorchAdamW = torch::optim::AdamWOptions;
  const AdamWOptions defaults = AdamWOptions(0.1).betas({0.5, 0.6}).eps(1e-3).amsgrad(true);
  const StateDict inherited{{"lr", 0.1},   {"betas.0", 0.5}, {"betas.1", 0.6},
                            {"eps", 1e-3}, {"amsgrad", 1},   {"weight_decay", 0.25}};
  expect_merged<AdamW>(AdamWOptions().weight_decay(0.25), defaults, inherited);
  expect_merged<AdamW>(TorchAdamW().weight_decay(0.25), defaults, inherited);
  expect_merged<AdamW>(AdamWOptions(0.2).betas({0.9, 0.6}).maximize(true), defaults,
                       {{"lr", 0.2},
                        {"betas.0", 0.9},
                        {"betas.1", 0.6},
                        {"eps", 1e-3},
                        {"weight_decay", 0.01},
                        {"maximize", 1}});
  expect_merged<SGD>(SGDOptions(0.05), SGDOptions(0.1).momentum(0.9),
                     {{"lr", 0.05}, {"momentum", 0.9}, {"nesterov", 0}});
  expect_merged<SGD>(SGDOptions().dampening(0.5), SGDOptions(0.1).momentum(0.9).weight_decay(0.2),
                     {{"lr", 0.1}, {"momentum", 0.9}, {"dampening", 0.5}, {"weight_decay", 0.2}});
  expect_merged<Lion>(LionOptions().weight_decay(0.5), LionOptions(0.3).betas({0.1, 0.2}),
                      {{"lr", 0.3}, {"betas.0", 0.1}, {"betas.1", 0.2}, {"weight_decay", 0.5}});
  expect_merged<LAMB>(LAMBOptions().trust_limit(4), LAMBOptions(0.3).adapt(false),
                      {{"lr", 0.3}, {"trust_limit", 4}, {"adapt", 0}});
}

TEST(FromLibTorch, GroupsInheritAsLibTorchsDo) {
  if (!kTorchMerges) GTEST_SKIP() << "this LibTorch does not merge the options of a group";
  const at::Tensor p = parameter({3}), q = parameter({3}), r = parameter({4}), s = parameter({4});
  const auto defaults = torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.1);
  for (const auto& given :
       {torch::optim::SGDOptions(0.05), torch::optim::SGDOptions(1e-3).momentum(0.5),
        torch::optim::SGDOptions(0.2).weight_decay(0).nesterov(true)}) {
    SGD mine(group_of(p, given), defaults);
    torch::optim::SGD theirs(group_of(q, given), defaults);
    mine.add_param_group(group_of(r, given)[0]);
    theirs.add_param_group(group_of(s, given)[0]);
    expect_same_steps(mine, theirs);
  }
}

/// Sets through LibTorch's type and reads the numbers of the step.
template <class Theirs, class Mine, class Set>
void expect_cast(Mine& optimizer, const Set& set, const char* name, double expected) {
  auto& options = optimizer.param_groups()[0].options();
  set(static_cast<Theirs&>(options));
  EXPECT_EQ(optimizer.group_numbers()[0].at(name), expected) << name;
  EXPECT_EQ(dynamic_cast<Theirs*>(&options), &static_cast<Theirs&>(options));
}

TEST(FromLibTorch, CastsToLibTorchsOptionsReachEveryField) {
  const at::Tensor p = leaf(1);
  SGD sgd({p}, SGDOptions(0.5));
  using S = torch::optim::SGDOptions;
  expect_cast<S>(
      sgd, [](S& o) { o.lr(0.25); }, "lr", 0.25);
  expect_cast<S>(
      sgd, [](S& o) { o.momentum(0.75); }, "momentum", 0.75);
  expect_cast<S>(
      sgd, [](S& o) { o.dampening(0.5); }, "dampening", 0.5);
  expect_cast<S>(
      sgd, [](S& o) { o.weight_decay() *= 2; }, "weight_decay", 0);
  expect_cast<S>(
      sgd, [](S& o) { o.weight_decay() += 2; }, "weight_decay", 2);
  expect_cast<S>(
      sgd, [](S& o) { o.nesterov(true); }, "nesterov", 1);
  const auto adam_like = [&](auto mine, auto theirs) {
    using Theirs = decltype(theirs);
    expect_cast<Theirs>(
        mine, [](Theirs& o) { o.lr(0.25); }, "lr", 0.25);
    expect_cast<Theirs>(
        mine,
        [](Theirs& o) {
          o.betas({0.1, 0.2});
        },
        "betas.0", 0.1);
    expect_cast<Theirs>(
        mine, [](Theirs& o) { std::get<1>(o.betas()) = 0.3; }, "betas.1", 0.3);
    expect_cast<Theirs>(
        mine, [](Theirs& o) { o.eps(1e-4); }, "eps", 1e-4);
    expect_cast<Theirs>(
        mine, [](Theirs& o) { o.weight_decay(0.5); }, "weight_decay", 0.5);
    expect_cast<Theirs>(
        mine, [](Theirs& o) { o.amsgrad(true); }, "amsgrad", 1);
    EXPECT_EQ(mine.group_numbers()[0].at("maximize"), 0);
  };
  adam_like(Adam({p}), torch::optim::AdamOptions());
  adam_like(AdamW({p}), torch::optim::AdamWOptions());
}

// The setters of the options return demi's type, so maximize is not lost behind LibTorch's.
TEST(FromLibTorch, SettersInAnyOrderKeepAllOptions) {
  const at::Tensor p = leaf(1);
  SGD sgd({p}, SGDOptions(0.5).maximize(true).weight_decay(0.25));
  EXPECT_EQ(sgd.group_numbers()[0].at("maximize"), 1);
  const auto copy = sgd.param_groups()[0].options().clone();
  EXPECT_TRUE(dynamic_cast<const SGDOptions&>(*copy).maximize());
  EXPECT_EQ(dynamic_cast<const SGDOptions&>(*copy).weight_decay(), 0.25);
}

/// Five steps of LibTorch's; then its state in the place of demi's, as programs that replace
/// parameters do, and three more of both.
template <class Theirs, class Mine, class State, class Options>
void expect_state_taken(const Options& options) {
  const at::Tensor q = parameter({5}), p = parameter({5});
  Theirs theirs({q}, options);
  Mine mine({p}, options);
  step(mine, 7);  // a state of its own, which goes
  for (int i = 0; i < 5; ++i) step(theirs, i);
  {
    const at::NoGradGuard no_grad;
    p.copy_(q);
  }
  mine.state()[p.unsafeGetTensorImpl()] = std::make_unique<State>(
      static_cast<const State&>(*theirs.state().at(q.unsafeGetTensorImpl())));
  expect_same_steps(mine, theirs);
}

TEST(FromLibTorch, StatesOfLibTorchsAreTakenOver) {
  using namespace torch::optim;
  const auto adam = torch::optim::AdamOptions(0.05).weight_decay(0.1);
  expect_state_taken<torch::optim::Adam, demi::optim::Adam, AdamParamState>(adam);
  expect_state_taken<torch::optim::Adam, demi::optim::Adam, AdamParamState>(
      torch::optim::AdamOptions(0.05).amsgrad(true));
  expect_state_taken<torch::optim::AdamW, demi::optim::AdamW, AdamWParamState>(
      torch::optim::AdamWOptions(0.05));
  expect_state_taken<torch::optim::SGD, demi::optim::SGD, SGDParamState>(
      torch::optim::SGDOptions(0.05).momentum(0.9));
}

TEST(FromLibTorch, StatesThatDoNotFitAreNamed) {
  const at::Tensor p = leaf(1);
  Adam adam({p}, AdamOptions(0.1));
  auto& slot = adam.state()[p.unsafeGetTensorImpl()];  // looking makes an empty one
  step(adam, 0);
  const at::Tensor before = p.detach().clone();
  const auto refused = [&](std::unique_ptr<torch::optim::OptimizerParamState> state,
                           const char* why) {
    slot = std::move(state);
    EXPECT_THAT(complaint([&] { step(adam, 1); }), HasSubstr(why));
    EXPECT_THAT(complaint([&] { (void)adam.state_tensors(); }), HasSubstr(why));
    EXPECT_TRUE(at::equal(p, before));
  };
  refused(std::make_unique<torch::optim::AdamParamState>(), "no exp_avg");
  auto other = std::make_unique<torch::optim::AdamParamState>();
  other->exp_avg(torch::zeros(3)).exp_avg_sq(torch::zeros(2));
  refused(std::move(other), "does not fit");
  refused(std::make_unique<torch::optim::RMSpropParamState>(), "RMSpropParamState");
  auto momentum = std::make_unique<torch::optim::SGDParamState>();
  momentum->momentum_buffer(torch::zeros(2));
  refused(std::move(momentum), "momentum_buffer");
  slot.reset();
  step(adam, 1);
  EXPECT_FALSE(at::equal(p, before));
}

// A parameter that is replaced within its group (pruning, moves by hand) brings a state along.
TEST(FromLibTorch, AReplacedParameterBringsItsState) {
  const at::Tensor p = parameter({4}), q = parameter({4});
  Adam mine({p}, AdamOptions(0.1));
  torch::optim::Adam theirs({q}, torch::optim::AdamOptions(0.1));
  const auto replace = [](torch::optim::Optimizer& optimizer, const at::Tensor& exp_avg,
                          const at::Tensor& exp_avg_sq, const at::Tensor& old) {
    const at::Tensor now = old.detach().slice(0, 0, 2).clone().requires_grad_();
    auto state = std::make_unique<torch::optim::AdamParamState>();
    state->step(1).exp_avg(exp_avg.slice(0, 0, 2).clone());
    state->exp_avg_sq(exp_avg_sq.slice(0, 0, 2).clone());
    optimizer.state().erase(old.unsafeGetTensorImpl());
    optimizer.param_groups()[0].params()[0] = now;
    optimizer.state()[now.unsafeGetTensorImpl()] = std::move(state);
  };
  step(mine, 0);
  step(theirs, 0);
  const auto kept = mine.state_tensors();
  replace(mine, kept.at("0.exp_avg"), kept.at("0.exp_avg_sq"), p);
  const auto& state =
      static_cast<const torch::optim::AdamParamState&>(*theirs.state().at(q.unsafeGetTensorImpl()));
  replace(theirs, state.exp_avg(), state.exp_avg_sq(), q);
  expect_same_steps(mine, theirs);
}

/// Saved by demi's after three steps, loaded by LibTorch's, and gone on with by both.
template <class Mine, class Theirs, class Options>
void expect_to_be_read(const Options& options) {
  const at::Tensor p = parameter({6}), q = parameter({6});
  Mine mine({p}, options);
  for (int i = 0; i < 3; ++i) step(mine, i);
  std::stringstream file;
  torch::save(mine, file);
  {
    const at::NoGradGuard no_grad;
    q.copy_(p);
  }
  Theirs theirs({q}, torch::optim::SGDOptions(1).lr());
  torch::load(theirs, file);
  EXPECT_EQ(theirs.param_groups()[0].options().get_lr(), options.lr());
  expect_same_steps(mine, theirs);
}

TEST(FromLibTorch, DemisArchivesLoadIntoLibTorchs) {
  expect_to_be_read<Adam, torch::optim::Adam>(AdamOptions(0.05).weight_decay(0.1));
  expect_to_be_read<Adam, torch::optim::Adam>(AdamOptions(0.05).amsgrad(true));
  expect_to_be_read<AdamW, torch::optim::AdamW>(AdamWOptions(0.05).betas({0.8, 0.95}));
  expect_to_be_read<SGD, torch::optim::SGD>(SGDOptions(0.05));
  expect_to_be_read<SGD, torch::optim::SGD>(SGDOptions(0.05).momentum(0.9).weight_decay(0.1));
}

/// Read by LibTorch's it is what demi's reads into FP32, and demi's reads the codes themselves.
template <class Mine, class Theirs, class Options>
void expect_coded_to_be_read(const Options& options) {
  for (const auto moments : {Moments::bf16, Moments::int8}) {
    const at::Tensor p = parameter({80, 70}), q = parameter({80, 70}), r = parameter({80, 70});
    Mine coded({p}, options, {.moments = moments});
    for (int i = 0; i < 3; ++i) step(coded, i);
    std::stringstream file;
    torch::save(coded, file);
    {
      const at::NoGradGuard no_grad;
      q.copy_(p);
      r.copy_(p);
    }
    Mine wide({q}, options),
        again({parameter({80, 70})}, options, {.moments = moments, .strict_state = true});
    Theirs theirs({r}, torch::optim::SGDOptions(1).lr());
    for (torch::optim::Optimizer* one : {static_cast<torch::optim::Optimizer*>(&wide),
                                         static_cast<torch::optim::Optimizer*>(&theirs),
                                         static_cast<torch::optim::Optimizer*>(&again)}) {
      std::stringstream copy(file.str());
      torch::load(*one, copy);
    }
    const auto expected = coded.state_tensors();
    EXPECT_EQ(again.state_tensors().size(), expected.size());
    for (const auto& [name, tensor] : again.state_tensors())
      EXPECT_TRUE(at::equal(tensor, expected.at(name))) << name;
    expect_same_steps(wide, theirs);
  }
}

TEST(FromLibTorch, DemisArchivesOfCodedMomentsLoadIntoLibTorchs) {
  expect_coded_to_be_read<AdamW, torch::optim::AdamW>(AdamWOptions(0.05).amsgrad(true));
  expect_coded_to_be_read<Adam, torch::optim::Adam>(AdamOptions(0.05).weight_decay(0.1));
  expect_coded_to_be_read<SGD, torch::optim::SGD>(SGDOptions(0.05).momentum(0.9));
  expect_coded_to_be_read<RMSprop, torch::optim::RMSprop>(RMSpropOptions(0.05).momentum(0.5));
}

// Archives as demi once wrote them: the count of steps is a tensor.
TEST(FromLibTorch, OlderArchivesOfDemiAreRead) {
  const at::Tensor p = parameter({6});
  Adam mine({p}, AdamOptions(0.05));
  for (int i = 0; i < 3; ++i) step(mine, i);
  torch::serialize::OutputArchive older;
  torch::optim::serialize<ParamState, AdamOptions>(older, mine);
  older.write("taken", mine.state_tensors().at("taken"), /*is_buffer=*/true);
  older.write("rule", c10::IValue(std::string("Adam")));
  std::stringstream file;
  older.save_to(file);
  Adam read({p}, AdamOptions(1));
  torch::load(read, file);
  EXPECT_EQ(read.state_tensors().at("0.step").item<int64_t>(), 3);
  EXPECT_TRUE(
      at::equal(read.state_tensors().at("0.exp_avg"), mine.state_tensors().at("0.exp_avg")));
}

// Moves

template <class O>
struct KeptByValue {
  explicit KeptByValue(O its) : optimizer(std::move(its)) {}
  O optimizer;
};

TEST(FromLibTorch, AMovedOptimizerGoesOn) {
  const at::Tensor p = parameter({5}), q = parameter({5});
  AdamW first({p}, AdamWOptions(0.1));
  torch::optim::AdamW theirs({q}, torch::optim::AdamWOptions(0.1));
  step(first, 9);
  step(theirs, 9);
  KeptByValue<AdamW> holder(std::move(first));
  EXPECT_EQ(owners_of(p).last, &holder.optimizer);
  EXPECT_EQ(owners_of(p).count, 1);
  EXPECT_EQ(holder.optimizer.last_step().optimizer(), &holder.optimizer);
  EXPECT_TRUE(weights::is_owned(p));
  expect_same_steps(holder.optimizer, theirs);

  std::vector<AdamW> several;
  several.push_back(std::move(holder.optimizer));
  for (int i = 0; i < 3; ++i) several.push_back(AdamW({leaf(i)}));  // makes room by moving
  EXPECT_EQ(owners_of(p).last, several.data());
  expect_same_steps(several.front(), theirs);

  // NOLINTBEGIN(bugprone-use-after-move): what is left says so
  EXPECT_THAT(complaint([&] { first.step(); }), HasSubstr("moved"));
  EXPECT_THAT(complaint([&] { (void)first.state_tensors(); }), HasSubstr("moved"));
  EXPECT_NO_THROW(first.zero_grad());
  // NOLINTEND(bugprone-use-after-move)
}

TEST(FromLibTorch, AnOptimizerIsMadeAnewInItsPlace) {
  const at::Tensor p = parameter({5}), q = parameter({5}), r = leaf(1);
  Adam mine({p, r}, AdamOptions(0.1));
  torch::optim::Adam theirs({q}, torch::optim::AdamOptions(0.1));
  step(mine, 0);
  step(theirs, 0);
  mine = Adam({p}, AdamOptions(0.2));
  theirs = torch::optim::Adam({q}, torch::optim::AdamOptions(0.2));
  EXPECT_EQ(owners_of(p).count, 1);
  EXPECT_EQ(owners_of(p).last, &mine);
  EXPECT_EQ(owners_of(r).count, 0);
  EXPECT_FALSE(weights::is_owned(r));
  EXPECT_EQ(mine.state_tensors().at("taken").item<int64_t>(), 0);
  expect_same_steps(mine, theirs);
  auto& same = mine;
  mine = std::move(same);
  expect_same_steps(mine, theirs);
}

// What was recorded before the move belongs to the step after it; hooks and the dtype of gradients
// stay until the last owner goes.
TEST(FromLibTorch, RecordsHooksAndGradientsFollowAMove) {
  const at::Tensor p = torch::zeros(2).requires_grad_();
  const StepOptions narrow{.low_precision_grads = true};
  std::optional<SGD> first(std::in_place, std::vector<at::Tensor>{p}, SGDOptions(1), narrow);
  set_grad(p, torch::tensor({6.F, 8.F}).to(at::kBFloat16));
  first->pending().unscale_(at::scalar_tensor(2.F));
  clip_grad_norm_({p}, 1);
  SGD second(std::move(*first));
  first.reset();
  second.step();
  EXPECT_TRUE(at::allclose(p.detach(), torch::tensor({-0.6F, -0.8F}), 0, 1e-6));
  EXPECT_EQ(p.grad().scalar_type(), at::kBFloat16);
  const at::Tensor more = torch::full({2}, 512.F, at::kBFloat16);
  (p.to(at::kBFloat16) * more).sum().backward();  // bf16 holds no 518
  EXPECT_TRUE(at::equal(p.grad().to(at::kFloat), torch::tensor({518.F, 520.F})));
  set_grad(p, torch::ones(2, at::kBFloat16));
  { const SGD last(std::move(second)); }
  EXPECT_EQ(p.grad().scalar_type(), at::kFloat);
  EXPECT_EQ(owners_of(p).count, 0);
}

TEST(FromLibTorch, AnOptimizerOverNoParametersIsRefused) {
  EXPECT_THAT(complaint([] { SGD(std::vector<at::Tensor>{}, SGDOptions(1)); }),
              HasSubstr("no parameters"));
  EXPECT_THAT(complaint([] { AdamW(std::vector<OptimizerParamGroup>{}); }),
              HasSubstr("no parameters"));
  EXPECT_THAT(complaint([] { AdamW({OptimizerParamGroup(std::vector<at::Tensor>{})}); }),
              HasSubstr("no parameters"));
}

}  // namespace
}  // namespace demi::optim
