// RMSprop, NAdam, RAdam and Adagrad against Python PyTorch's single tensor forms over 50 steps
// (benchmarks/peers/rules.py).
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "demi/core/source_dir_testing.h"
#include "demi/optim/adagrad.h"
#include "demi/optim/nadam.h"
#include "demi/optim/radam.h"
#include "demi/optim/rmsprop.h"
#include "demi/optim/testing.h"

namespace demi::optim {
namespace {

using nlohmann::json;

const json& peer() {
  static const json numbers =
      json::parse(std::ifstream(source_dir() / "benchmarks/peers/rules.json"));
  return numbers;
}

void set_numbers(StateDict& numbers, const json& given) {
  for (const auto& [name, value] : given.items()) {
    if (value.is_array()) {
      numbers[name + ".0"] = value[0];
      numbers[name + ".1"] = value[1];
    } else {
      numbers[name] = value.is_boolean() ? (value.get<bool>() ? 1.0 : 0.0) : value.get<double>();
    }
  }
}

template <class Kind>
std::unique_ptr<Optimizer> made(const at::Tensor& p, const json& options) {
  auto one = std::make_unique<Kind>(std::vector<at::Tensor>{p});
  std::vector<StateDict> groups = one->group_numbers();
  set_numbers(groups[0], options);
  one->prepare_state({}, groups)();
  return one;
}

std::unique_ptr<Optimizer> made(const json& one, const at::Tensor& p) {
  const std::string kind = one.at("kind");
  if (kind == "RMSprop") return made<RMSprop>(p, one.at("options"));
  if (kind == "Adagrad") return made<Adagrad>(p, one.at("options"));
  if (kind == "NAdam") return made<NAdam>(p, one.at("options"));
  return made<RAdam>(p, one.at("options"));
}

at::Tensor values(const json& row, at::ScalarType dtype) {
  return torch::tensor(row.get<std::vector<double>>(), at::kDouble).to(dtype);
}

/// The parameter after each of the file's steps: (steps, elements).
at::Tensor walk(const json& one, at::ScalarType dtype) {
  const int seed = one.value("seed", 0);
  const at::Tensor p = values(seed ? one.at("start") : peer().at("start"), dtype).requires_grad_();
  const at::Tensor target = values(peer().at("target"), dtype);
  const auto optimizer = made(one, p);
  const auto steps = peer().at("steps").get<std::vector<int>>();
  std::vector<at::Tensor> track;
  for (int step = 1; step <= steps.back(); ++step) {
    {
      const at::NoGradGuard no_grad;
      const at::Tensor part = (torch::arange(19) * 7 + (step + 100 * seed) * 13).remainder(29) - 14;
      p.mutable_grad() = part.to(dtype) / 16 + (p - target) / 4;
    }
    optimizer->step();
    if (std::count(steps.begin(), steps.end(), step)) track.push_back(p.detach().clone());
  }
  return at::stack(track);
}

at::Tensor track(const json& rows, at::ScalarType dtype) {
  std::vector<at::Tensor> all;
  for (const json& row : rows) all.push_back(values(row, dtype));
  return at::stack(all);
}

void expect_pythons(const char* path) {
  const testing::ScopedEnvironment forced("DEMI_KERNELS", path);
  for (const auto& [name, one] : peer().at("cases").items())
    EXPECT_TRUE(at::equal(walk(one, at::kFloat), track(one.at("fp32"), at::kFloat)))
        << name << " " << path;
}

TEST(Rules, HavePythonsBits) { expect_pythons("reference"); }
TEST(Rules, TensorOperationsHavePythonsBits) { expect_pythons("aten"); }

// With the hyper-parameters rounded to FP32, as every FP64 parameter has.
TEST(Rules, Fp64ParametersFollowPythonsFp64) {
  for (const auto& [name, one] : peer().at("cases").items())
    EXPECT_TRUE(
        at::allclose(walk(one, at::kDouble), track(one.at("fp64"), at::kDouble), 1e-4, 1e-5))
        << name;
}

TEST(Rules, OptionsOutOfRangeAreNamed) {
  const at::Tensor p = torch::zeros(2).requires_grad_();
  const auto refused = [](const auto& call) { return testing::complaint(call); };
  EXPECT_NE(refused([&] { RMSprop({p}, RMSpropOptions(1).alpha(-0.1)); }).find("alpha"),
            std::string::npos);
  EXPECT_NE(refused([&] {
              NAdam({p}, NAdamOptions(1).momentum_decay(std::nan("")));
            }).find("momentum_decay"),
            std::string::npos);
  EXPECT_NE(refused([&] {
              RAdam({p}, RAdamOptions(1).betas({0.9, 1.0}));
            }).find("beta2"),
            std::string::npos);
  EXPECT_NE(refused([&] { Adagrad({p}, AdagradOptions(1).lr_decay(-1)); }).find("lr_decay"),
            std::string::npos);
  EXPECT_NE(refused([&] {
              Adagrad({p}, AdagradOptions(1).initial_accumulator_value(HUGE_VAL));
            }).find("initial_accumulator_value"),
            std::string::npos);
}

// The product of the momentums so far is a number of the parameter: saved, and not moved by a step
// that is skipped.
TEST(Rules, NAdamsProductIsSavedAndSkipsWithTheStep) {
  const at::Tensor p = torch::ones(3).requires_grad_(), q = torch::ones(3).requires_grad_();
  NAdam whole({p}), part({q});
  const auto step = [](NAdam& nadam, const at::Tensor& x, float gradient) {
    x.mutable_grad() = torch::full({3}, gradient);
    nadam.step();
  };
  for (const float gradient : {1.0F, 2.0F, -1.0F}) step(whole, p, gradient);
  step(part, q, 1.0F);
  const at::Tensor product = part.state_tensors().at("0.mu_product").clone();
  // Dozat 2016: the first momentum is beta1 (1 - 0.96^decay / 2).
  EXPECT_NEAR(product.item<double>(), 0.9 * (1 - 0.5 * std::pow(0.96, 0.004)), 1e-7);
  step(part, q, HUGE_VALF);
  EXPECT_TRUE(part.last_step().skipped());
  EXPECT_TRUE(at::equal(part.state_tensors().at("0.mu_product"), product));
  step(part, q, 2.0F);
  std::stringstream file;
  torch::save(part, file);
  NAdam read({q});
  torch::load(read, file);
  step(read, q, -1.0F);
  EXPECT_TRUE(at::equal(p, q));
  auto broken = read.state_tensors();
  broken["0.mu_product"] = torch::ones(3);
  EXPECT_NE(testing::complaint([&] { read.load_state_tensors(broken); }).find("one finite number"),
            std::string::npos);
}

/// Both ways between demi's optimizer and LibTorch's of the same options.
template <class Mine, class Theirs>
void expect_state_moves_to_and_from_libtorch(const auto& options) {
  const at::Tensor p = torch::linspace(-1, 1, 7).requires_grad_(),
                   q = torch::linspace(-1, 1, 7).requires_grad_();
  Theirs theirs({p}, options);
  Mine mine({q}, options);
  const auto step = [](torch::optim::Optimizer& optimizer, const at::Tensor& x, int t) {
    x.mutable_grad() = (torch::arange(7) + t).cos();
    optimizer.step();
  };
  for (int t = 0; t < 3; ++t) step(theirs, p, t), step(mine, q, t);
  EXPECT_TRUE(at::allclose(p, q, 1e-5, 1e-6));
  std::stringstream to, from;
  torch::save(theirs, to);
  torch::save(mine, from);
  const at::Tensor r = p.detach().clone().requires_grad_(), s = q.detach().clone().requires_grad_();
  Mine read({r}, options);
  Theirs back({s}, options);
  torch::load(read, to);
  torch::load(back, from);
  // A state of LibTorch's that a program puts there.
  const at::Tensor u = p.detach().clone().requires_grad_();
  Mine placed({u}, options);
  placed.state()[u.unsafeGetTensorImpl()] = theirs.state().at(p.unsafeGetTensorImpl())->clone();
  for (int t = 3; t < 6; ++t) {
    step(placed, u, t);  // copies, before LibTorch's goes on
    step(theirs, p, t), step(mine, q, t), step(read, r, t), step(back, s, t);
  }
  for (const auto& [name, x] : std::map<std::string, at::Tensor>{
           {"demi's", q}, {"read by demi", r}, {"read by LibTorch", s}, {"placed", u}})
    EXPECT_TRUE(at::allclose(p, x, 1e-5, 1e-5)) << name << "\n" << p - x;
  EXPECT_EQ(read.state_tensors().at("0.step").template item<int64_t>(), 6);
}

TEST(Rules, RMSpropsStateMovesToAndFromLibTorch) {
  expect_state_moves_to_and_from_libtorch<RMSprop, torch::optim::RMSprop>(
      torch::optim::RMSpropOptions(0.01).momentum(0.9).centered(true));
}

TEST(Rules, AdagradsStateMovesToAndFromLibTorch) {
  expect_state_moves_to_and_from_libtorch<Adagrad, torch::optim::Adagrad>(
      torch::optim::AdagradOptions(0.1).lr_decay(0.1).weight_decay(0.01).initial_accumulator_value(
          0.5));
}

// LibTorch's makes the sum before the first step.
TEST(Rules, AnAdagradOfLibTorchThatTookNoStepIsRead) {
  const at::Tensor p = torch::ones(3).requires_grad_(), q = torch::ones(3).requires_grad_();
  const auto options = torch::optim::AdagradOptions(0.1).initial_accumulator_value(0.5);
  torch::optim::Adagrad theirs({p}, options);
  std::stringstream file;
  torch::save(theirs, file);
  Adagrad mine({q}, AdagradOptions(0.3));
  torch::load(mine, file);
  EXPECT_EQ(mine.steps_taken(), 0);
  for (const at::Tensor& x : {p, q}) x.mutable_grad() = torch::full({3}, 2.0F);
  theirs.step();
  mine.step();
  EXPECT_TRUE(at::allclose(p, q));
  EXPECT_TRUE(at::equal(mine.state_tensors().at("0.sum"), torch::full({3}, 4.5F)));
}

// Each group's sum begins with its own value, in FP32 whatever the moments of the optimizer are.
TEST(Rules, AdagradsSumBeginsWithTheGroupsValueAndStaysInFp32) {
  const at::Tensor p = torch::ones({64, 64}).requires_grad_(),
                   q = torch::ones({64, 64}).requires_grad_();
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector{p});
  groups.emplace_back(std::vector{q}, std::make_unique<AdagradOptions>(
                                          AdagradOptions().initial_accumulator_value(2)));
  for (const Moments moments : {Moments::fp32, Moments::bf16, Moments::int8}) {
    Adagrad adagrad(groups, AdagradOptions(0.5).initial_accumulator_value(0.25),
                    {.moments = moments});
    for (const at::Tensor& x : {p, q}) x.mutable_grad() = torch::full({64, 64}, 3.0F);
    adagrad.step();
    const auto state = adagrad.state_tensors();
    EXPECT_TRUE(at::equal(state.at("0.sum"), torch::full({64, 64}, 9.25F)));
    EXPECT_TRUE(at::equal(state.at("1.sum"), torch::full({64, 64}, 11.0F)));
    EXPECT_EQ(state.count("0.sum_scale"), 0U);
  }
}

}  // namespace
}  // namespace demi::optim
