// States that a program replaces between two steps: the tables of a step hold the addresses of
// their memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "demi/optim/clip.h"
#include "demi/optim/kinds_testing.h"
#include "demi/optim/testing.h"
#include "demi/step/emulated_device_testing.h"

namespace demi::optim {
namespace {

using namespace testing;
using ::testing::HasSubstr;

ParamState& state_of(Optimizer& optimizer, const at::Tensor& parameter) {
  return static_cast<ParamState&>(*optimizer.state().at(parameter.unsafeGetTensorImpl()));
}

void step(torch::optim::Optimizer& optimizer, const Tensors& parameters, int i) {
  for (const at::Tensor& p : parameters) set_grad(p, gradient(p, p.scalar_type(), i));
  optimizer.step();
}

/// Large enough for states of 8 bits.
Tensors parameters_of(at::ScalarType dtype) {
  return {parameter({80, 70}, dtype), parameter({7}, dtype, 2)};
}

using Change = std::function<void(ParamState&)>;

/// Another tensor, or other memory, with these numbers.
void replace_each(ParamState& state, bool by_set_data) {
  for (const auto& [name, tensor] : state.tensors()) {
    if (by_set_data)
      tensor.set_data(tensor.clone());
    else
      state[name] = tensor.clone();
    // What was there is soiled, so that a step which reads it goes another way.
    if (!by_set_data && tensor.is_floating_point()) at::Tensor(tensor).fill_(1e4);
  }
}

void expect_to_go_on(const Kind& kind, at::ScalarType dtype, StepOptions options,
                     const Backend& backend, bool by_set_data) {
  const Tensors p = parameters_of(dtype), q = parameters_of(dtype);
  const auto mine = kind.make(p, options, backend), whole = kind.make(q, options, backend);
  for (int i = 0; i < 3; ++i) {
    step(*mine, p, i);
    step(*whole, q, i);
    const at::NoGradGuard no_grad;
    for (const at::Tensor& one : p) replace_each(state_of(*mine, one), by_set_data);
  }
  for (std::size_t i = 0; i < p.size(); ++i) EXPECT_TRUE(at::equal(p[i], q[i])) << i;
  const auto expected = whole->state_tensors();
  for (const auto& [name, tensor] : mine->state_tensors())
    EXPECT_TRUE(at::equal(tensor, expected.at(name))) << name;
}

TEST(ReplacedState, OfTheSameNumbersChangesNothing) {
  const EmulatedDevice device;
  const Backend& host = machine_backend();
  for (const Kind& kind : kKinds)
    for (const bool by_set_data : {false, true}) {
      SCOPED_TRACE(std::string(kind.name) + (by_set_data ? ", other memory" : ""));
      for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble})
        expect_to_go_on(kind, dtype, {}, host, by_set_data);
      expect_to_go_on(kind, at::kFloat, {.moments = Moments::int8}, host, by_set_data);
      expect_to_go_on(kind, at::kFloat, {.path = kernels::Path::aten}, host, by_set_data);
      expect_to_go_on(kind, at::kBFloat16, {.weight_mode = WeightMode::split}, host, by_set_data);
      expect_to_go_on(kind, at::kBFloat16, {.moments = Moments::int8}, device, by_set_data);
    }
}

/// The same change of LibTorch's Adam and of demi's, after two steps.
void expect_as_in_torch(const Change& change,
                        const std::function<void(torch::optim::AdamParamState&)>& theirs,
                        StepOptions options = {}, double tolerance = 1e-5) {
  const Tensors p = parameters_of(at::kFloat), q = parameters_of(at::kFloat);
  Adam mine(p, AdamOptions(0.1), options);
  torch::optim::Adam libtorchs(q, torch::optim::AdamOptions(0.1));
  for (int i = 0; i < 6; ++i) {
    step(mine, p, i);
    step(libtorchs, q, i);
    if (i != 1) continue;
    for (const at::Tensor& one : p) change(state_of(mine, one));
    for (const at::Tensor& one : q)
      theirs(static_cast<torch::optim::AdamParamState&>(
          *libtorchs.state().at(one.unsafeGetTensorImpl())));
  }
  for (std::size_t i = 0; i < p.size(); ++i)
    EXPECT_TRUE(at::allclose(p[i], q[i], tolerance, tolerance))
        << (p[i] - q[i]).abs().max().item<float>();
}

TEST(ReplacedState, IsUsedAsInLibTorch) {
  const auto zero = [](ParamState& state) {
    state["exp_avg"] = torch::zeros(state["exp_avg"].sizes());
  };
  const auto theirs = [](torch::optim::AdamParamState& state) {
    state.exp_avg(torch::zeros_like(state.exp_avg()));
  };
  expect_as_in_torch(zero, theirs);
  expect_as_in_torch(zero, theirs, {.path = kernels::Path::aten});
  expect_as_in_torch(zero, theirs, {.moments = Moments::int8}, 0.05);
  expect_as_in_torch(zero, theirs, {.moments = Moments::bf16}, 0.02);
  const auto other_layout = [](ParamState& state) {
    const at::Tensor& now = state["exp_avg_sq"];
    state["exp_avg_sq"] = torch::ones(now.sizes(), at::kDouble).t().contiguous().t();
  };
  expect_as_in_torch(other_layout, [](torch::optim::AdamParamState& state) {
    state.exp_avg_sq(torch::ones_like(state.exp_avg_sq()));
  });
}

TEST(ReplacedState, ACountIsUsedAsInLibTorch) {
  const auto theirs = [](torch::optim::AdamParamState& state) { state.step(7); };
  for (const auto path : {std::optional<kernels::Path>{}, std::optional(kernels::Path::aten)}) {
    const StepOptions options{.path = path};
    expect_as_in_torch([](ParamState& state) { state.step = torch::scalar_tensor(7, at::kLong); },
                       theirs, options);
    expect_as_in_torch([](ParamState& state) { state.step.fill_(7); }, theirs, options);
    expect_as_in_torch([](ParamState& state) { state.step = torch::full({1}, 7.0); }, theirs,
                       options);
    const at::Tensor of_all = torch::scalar_tensor(7, at::kLong);  // each counts for itself
    expect_as_in_torch([&](ParamState& state) { state.step = of_all; }, theirs, options);
  }
}

TEST(ReplacedState, AStateInThePlaceOfOneThatWasErasedIsUsed) {
  const Tensors p = parameters_of(at::kFloat), q = parameters_of(at::kFloat);
  Adam mine(p, AdamOptions(0.1));
  torch::optim::Adam libtorchs(q, torch::optim::AdamOptions(0.1));
  for (int i = 0; i < 6; ++i) {
    step(mine, p, i);
    step(libtorchs, q, i);
    for (const at::Tensor& one : p) {
      mine.state().erase(one.unsafeGetTensorImpl());  // the next has its address
      mine.state()[one.unsafeGetTensorImpl()] = std::make_unique<ParamState>();
    }
    libtorchs.state().clear();
  }
  for (std::size_t i = 0; i < p.size(); ++i) EXPECT_TRUE(at::allclose(p[i], q[i], 1e-5, 1e-5)) << i;
}

// A master that was put there counts: the parameter becomes its rounded copy.
TEST(ReplacedState, AMasterCountsUnlessTheParameterWasWritten) {
  for (const bool writes : {false, true}) {
    const at::Tensor p = parameter({40}, at::kBFloat16), q = parameter({40}, at::kFloat, 3);
    SGD mine({p}, SGDOptions(0.1)), fp32({q}, SGDOptions(0.1));
    step(mine, {p}, 0);
    state_of(mine, p).master = q.detach().clone();
    if (writes) {
      const at::NoGradGuard no_grad;
      p.fill_(2);
      q.fill_(2);
    }
    set_grad(p, gradient(p, at::kFloat, 1));
    set_grad(q, gradient(q, at::kFloat, 1));
    mine.step();
    fp32.step();
    EXPECT_TRUE(at::equal(state_of(mine, p).master, q)) << writes;
    EXPECT_TRUE(at::equal(p, q.to(at::kBFloat16))) << writes;
  }
}

TEST(ReplacedState, WhatIsRecordedForTheStepStays) {
  const at::Tensor p = parameter({6}), q = parameter({6});
  SGD mine({p}, SGDOptions(0.1).momentum(0.9)), whole({q}, SGDOptions(0.1).momentum(0.9));
  step(mine, {p}, 0);
  step(whole, {q}, 0);
  for (const at::Tensor& one : {p, q}) {
    set_grad(one, gradient(one, at::kFloat, 1));
    clip_grad_norm_({one}, 0.1);
  }
  state_of(mine, p)["momentum_buffer"] = state_of(whole, q)["momentum_buffer"].clone();
  mine.step();
  whole.step();
  EXPECT_TRUE(at::equal(p, q));
}

TEST(ReplacedState, ThatDoesNotFitIsNamedBeforeAnythingChanges) {
  const at::Tensor p = parameter({80, 70}, at::kBFloat16);
  Adam adam({p}, AdamOptions(0.1), {.moments = Moments::int8});
  step(adam, {p}, 0);
  const at::Tensor before = p.detach().clone();
  const auto refused = [&](const char* name, const at::Tensor& wrong, const char* why) {
    const at::Tensor right = std::exchange(state_of(adam, p)[name], wrong);
    const auto others = adam.state_tensors();
    EXPECT_THAT(complaint([&] { step(adam, {p}, 1); }), HasSubstr(why)) << name;
    EXPECT_TRUE(at::equal(p, before)) << name;
    state_of(adam, p)[name] = right;
    for (const auto& [other, tensor] : adam.state_tensors()) {
      const bool is_same =
          other == "taken" || other == std::string("0.") + name || tensor.is_same(others.at(other));
      EXPECT_TRUE(is_same) << other;
    }
  };
  refused("exp_avg", torch::zeros({70, 80}, at::kChar), "does not fit its parameter");
  refused("exp_avg", torch::zeros({80, 70}, at::kByte), "int8 with scales");
  refused("exp_avg", torch::zeros({80, 70}, at::kInt), "floating point");
  refused("exp_avg", at::sparse_coo_tensor({80, 70}, at::kFloat), "floating point");
  refused("exp_avg_scale", torch::zeros({3}, at::kBFloat16), "one for 32 elements: 175");
  refused("exp_avg_scale", {}, "do not belong together");
  refused("master", torch::zeros({3}), "does not fit its parameter");
  refused("master", torch::zeros({80, 70}, at::kLong), "floating point");
  refused("step", torch::zeros({2}, at::kLong), "one number");
  refused("step", torch::scalar_tensor(-1, at::kLong), "0 or more");
  step(adam, {p}, 1);
  EXPECT_FALSE(at::equal(p, before));
  Adam split({p}, AdamOptions(0.1), {.weight_mode = WeightMode::split});
  step(split, {p}, 0);
  state_of(split, p).remainder = torch::zeros({80, 70});
  EXPECT_THAT(complaint([&] { step(split, {p}, 1); }), HasSubstr("int16, uint16 or int8"));
}

}  // namespace
}  // namespace demi::optim
