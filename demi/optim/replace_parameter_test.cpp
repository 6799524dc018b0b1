// Parameters whose number of rows changes: against LibTorch's Adam with its state moved by hand,
// and against the training that replaces nothing.
#include "demi/optim/replace_parameter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "demi/autocast/apply.h"
#include "demi/autocast/autocast.h"
#include "demi/optim/clip.h"
#include "demi/optim/ema.h"
#include "demi/optim/export_fp32.h"
#include "demi/optim/kinds_testing.h"
#include "demi/optim/multi_optimizer.h"
#include "demi/optim/state_share.h"
#include "demi/optim/testing.h"
#include "demi/scaler/grad_scaler.h"
#include "demi/step/coded_state.h"
#include "demi/step/emulated_device_testing.h"
#include "demi/weights/weights.h"

namespace demi::optim {
namespace {

using ::testing::AllOf;
using testing::complaint;
using testing::EmulatedDevice;
using testing::gradient;
using ::testing::HasSubstr;
using testing::Kind;
using testing::KindId;
using testing::kKinds;
using testing::parameter;
using testing::set_grad;

at::Tensor rows_of(std::vector<int64_t> rows) { return torch::tensor(std::move(rows)); }

/// The rows of `from` that `rows` names, of which none is new, as a parameter.
at::Tensor rows_as_parameter(const at::Tensor& from, const at::Tensor& rows) {
  return from.detach().index_select(0, rows).requires_grad_();
}

/// Which rows go on, some twice, in another order: the training of each is the one that it had.
TEST(ReplaceParameter, RowsTrainOnWithTheirBits) {
  const EmulatedDevice device;
  const at::Tensor rows = rows_of({4, 2, 2, 0, 5});
  struct Form {
    at::ScalarType dtype;
    WeightMode mode;
  };
  for (const Kind& kind : kKinds) {
    if (kind.id == KindId::kLamb) continue;  // its norms are of the whole tensor
    for (const auto& [dtype, mode] :
         {Form{at::kFloat, WeightMode::master}, Form{at::kDouble, WeightMode::master},
          Form{at::kBFloat16, WeightMode::master}, Form{at::kBFloat16, WeightMode::split},
          Form{at::kBFloat16, WeightMode::split24}, Form{at::kHalf, WeightMode::split}})
      for (const Backend* backend : {&machine_backend(), static_cast<const Backend*>(&device)}) {
        if (dtype == at::kDouble && backend == &device) continue;
        SCOPED_TRACE(c10::str(kind.name, " ", dtype, " ", static_cast<int>(mode)));
        const StepOptions options{.weight_mode = mode};
        const at::Tensor p = parameter({6, 3}, dtype), q = parameter({4}, dtype, 2);
        const at::Tensor whole = parameter({6, 3}, dtype), other = parameter({4}, dtype, 2);
        const auto mine = kind.make({p, q}, options, *backend);
        const auto expected = kind.make({whole, other}, options, *backend);
        at::Tensor now = p;
        for (int step = 0; step < 6; ++step) {
          if (step == 3) {
            now = rows_as_parameter(p, rows);
            replace_parameter(*mine, p, now, rows);
          }
          set_grad(whole, gradient(whole, dtype, step));
          set_grad(now, step < 3 ? whole.grad().clone() : whole.grad().index_select(0, rows));
          for (const at::Tensor& one : {q, other}) set_grad(one, gradient(one, dtype, step));
          mine->step();
          expected->step();
        }
        EXPECT_TRUE(at::equal(now, whole.index_select(0, rows)));
        EXPECT_TRUE(at::equal(q, other));
        EXPECT_EQ(mine->steps_taken(), 6);
        const auto state = mine->state_tensors(), of_whole = expected->state_tensors();
        EXPECT_EQ(state.size(), of_whole.size());
        for (const auto& [name, tensor] : of_whole) {
          if (!name.starts_with("0.") || tensor.dim() == 0) continue;
          const bool is_short = tensor.scalar_type() == at::kUInt16;
          EXPECT_TRUE(
              at::equal(is_short ? state.at(name).view(at::kShort) : state.at(name),
                        (is_short ? tensor.view(at::kShort) : tensor).index_select(0, rows)))
              << name;
        }
        EXPECT_EQ(state.at("0.step").item<int64_t>(), of_whole.at("0.step").item<int64_t>());
      }
  }
}

/// What programs with LibTorch's optimizers write by hand.
void replace_by_hand(torch::optim::Adam& adam, const at::Tensor& old, const at::Tensor& by,
                     const at::Tensor& rows) {
  const auto& from =
      static_cast<torch::optim::AdamParamState&>(*adam.state().at(old.unsafeGetTensorImpl()));
  const auto gather = [&](const at::Tensor& moment) {
    std::vector<at::Tensor> each;
    for (int64_t i = 0; i < rows.numel(); ++i) {
      const auto row = rows[i].item<int64_t>();
      each.push_back(row < 0 ? torch::zeros_like(moment[0]) : moment[row]);
    }
    return torch::stack(each);
  };
  auto to = std::make_unique<torch::optim::AdamParamState>();
  to->step(from.step());
  to->exp_avg(gather(from.exp_avg()));
  to->exp_avg_sq(gather(from.exp_avg_sq()));
  adam.state().erase(old.unsafeGetTensorImpl());
  adam.state()[by.unsafeGetTensorImpl()] = std::move(to);
  adam.param_groups()[0].params()[0] = by;
}

TEST(ReplaceParameter, IsWhatProgramsDoByHandWithLibTorchsAdam) {
  const auto options = torch::optim::AdamOptions(0.05).weight_decay(0.01);
  at::Tensor p = parameter({5, 4}), q = parameter({5, 4});
  Adam mine({p}, options);
  torch::optim::Adam theirs({q}, options);
  const std::vector<at::Tensor> changes{rows_of({0, 1, 2, 3, 4, 2, -1, -1}), rows_of({7, 6, 1}),
                                        rows_of({-1, 0, 1, 2, -1})};
  for (int step = 0; step < 24; ++step) {
    if (step % 6 == 5 && step / 6 < 3) {
      const at::Tensor rows = changes[static_cast<std::size_t>(step / 6)];
      const auto grown = [&](const at::Tensor& from) {
        const at::Tensor made = from.detach().index_select(0, rows.clamp_min(0));
        return made.add_((rows < 0).to(at::kFloat).view({-1, 1})).requires_grad_();
      };
      const at::Tensor p_now = grown(p), q_now = grown(q);
      replace_parameter(mine, p, p_now, rows);
      replace_by_hand(theirs, q, q_now, rows);
      p = p_now, q = q_now;
    }
    set_grad(p, gradient(p, at::kFloat, step));
    set_grad(q, gradient(q, at::kFloat, step));
    mine.step();
    theirs.step();
  }
  EXPECT_TRUE(at::allclose(p, q, 1e-5, 1e-6)) << p - q;
}

// New rows begin as a new parameter does: Adagrad's sum with the group's value.
TEST(ReplaceParameter, NewRowsBeginAsANewParameterDoes) {
  const at::Tensor p = parameter({3, 2}), rows = rows_of({-1, 2});
  Adagrad adagrad({p}, AdagradOptions(0.1).initial_accumulator_value(0.5));
  set_grad(p, torch::full({3, 2}, 2.0F));
  adagrad.step();
  const at::Tensor now = torch::ones({2, 2}).requires_grad_();
  replace_parameter(adagrad, p, now, rows);
  const auto state = adagrad.state_tensors();
  EXPECT_TRUE(at::equal(state.at("0.sum"), torch::tensor({{0.5F, 0.5F}, {4.5F, 4.5F}})));
  EXPECT_EQ(state.at("0.step").item<int64_t>(), 1);
  EXPECT_TRUE(at::equal(now, torch::ones({2, 2}))) << "the values are the program's";
}

TEST(ReplaceParameter, BeforeTheFirstStepThereIsNoState) {
  const at::Tensor p = parameter({3, 2}), now = parameter({4, 2}), fresh = parameter({4, 2});
  AdamW mine({p}), expected({fresh});
  replace_parameter(mine, p, now, rows_of({0, 1, 2, -1}));
  for (const at::Tensor& one : {now, fresh}) set_grad(one, gradient(one, at::kFloat, 1));
  mine.step();
  expected.step();
  EXPECT_TRUE(at::equal(now, fresh));
}

// From all rows to none and back.
TEST(ReplaceParameter, ByNoRowsAndByMore) {
  at::Tensor p = parameter({3, 2});
  AdamW adamw({p, parameter({2})});
  const auto step = [&] {
    for (const at::Tensor& one : adamw.param_groups()[0].params())
      set_grad(one, gradient(one, at::kFloat, 1));
    adamw.step();
  };
  step();
  const at::Tensor none = torch::empty({0, 2}).requires_grad_();
  replace_parameter(adamw, p, none, rows_of({}));
  step();
  const at::Tensor two = torch::ones({2, 2}).requires_grad_();
  replace_parameter(adamw, none, two, rows_of({-1, -1}));
  EXPECT_TRUE(at::equal(adamw.state_tensors().at("0.exp_avg"), torch::zeros({2, 2})));
  step();
  EXPECT_TRUE(torch::isfinite(two).all().item<bool>());
}

// Codes are of groups of 32 neighbours: decoded, gathered, encoded, to nearest. The step of a code
// is at most 1/127 of its group's greatest softsign, or twice 1/255 of its greatest root.
TEST(ReplaceParameter, MomentsInFewerBitsAreEncodedAgain) {
  for (const Moments moments : {Moments::bf16, Moments::int8}) {
    const at::Tensor p = parameter({600, 9}), rows = torch::randperm(600).slice(0, 0, 550);
    AdamW adamw({p}, AdamWOptions(0.01), {.moments = moments});
    for (int i = 0; i < 3; ++i) {
      set_grad(p, gradient(p, at::kFloat, i));
      adamw.step();
    }
    const auto decoded_state = [&](const at::Tensor& of, const char* name) {
      return decoded(static_cast<ParamState&>(*adamw.state().at(of.unsafeGetTensorImpl())), name);
    };
    const at::Tensor first = decoded_state(p, "exp_avg").index_select(0, rows),
                     square = decoded_state(p, "exp_avg_sq").index_select(0, rows);
    const at::Tensor now = rows_as_parameter(p, rows);
    replace_parameter(adamw, p, now, rows);
    const auto state = adamw.state_tensors();
    EXPECT_EQ(state.at("0.exp_avg").scalar_type(),
              moments == Moments::bf16 ? at::kBFloat16 : at::kChar);
    if (moments == Moments::bf16) {
      EXPECT_TRUE(at::equal(decoded_state(now, "exp_avg"), first));
      EXPECT_TRUE(at::equal(decoded_state(now, "exp_avg_sq"), square));
    } else {
      EXPECT_EQ(state.at("0.exp_avg_scale").numel(), (550 * 9 + 31) / 32);
      const auto worst = [](const at::Tensor& seen, const at::Tensor& expected) {
        return (seen - expected).abs().max().item<double>() / expected.abs().max().item<double>();
      };
      EXPECT_LT(worst(decoded_state(now, "exp_avg"), first), 1.0 / 127);
      EXPECT_LT(worst(decoded_state(now, "exp_avg_sq"), square), 1.0 / 255);
    }
    set_grad(now, gradient(now, at::kFloat, 4));
    adamw.step();
    // Fewer elements than are coded are FP32.
    const at::Tensor few = rows_as_parameter(now, torch::arange(7));
    replace_parameter(adamw, now, few, torch::arange(7));
    EXPECT_EQ(adamw.state_tensors().at("0.exp_avg").scalar_type(), at::kFloat);
    EXPECT_EQ(adamw.state_tensors().count("0.exp_avg_scale"), 0U);
    const at::Tensor many_rows = torch::arange(7).repeat({100});
    const at::Tensor many = rows_as_parameter(few, many_rows);
    replace_parameter(adamw, few, many, many_rows);
    EXPECT_NE(adamw.state_tensors().at("0.exp_avg").scalar_type(), at::kFloat);
    set_grad(many, gradient(many, at::kFloat, 5));
    adamw.step();
  }
}

// A master and a remainder belong to one value. Where the program has put another, that one counts.
TEST(ReplaceParameter, AMasterStaysWhereTheValueDoes) {
  for (const WeightMode mode : {WeightMode::master, WeightMode::split}) {
    const at::Tensor p = parameter({4, 2}, at::kBFloat16);
    SGD sgd({p}, SGDOptions(0.01), {.weight_mode = mode});
    for (int i = 0; i < 3; ++i) {
      set_grad(p, gradient(p, at::kFloat, i));
      sgd.step();
    }
    const at::Tensor trained = fp32_weight(sgd, p).clone();
    const at::Tensor rows = rows_of({3, 1, -1});
    const at::Tensor now = torch::stack({p[3].detach(), torch::full({2}, 5, at::kBFloat16),
                                         torch::full({2}, 7, at::kBFloat16)})
                               .requires_grad_();
    replace_parameter(sgd, p, now, rows);
    const at::Tensor seen = fp32_weight(sgd, now);
    EXPECT_TRUE(at::equal(seen[0], trained[3]));
    EXPECT_TRUE(at::equal(seen[1], torch::full({2}, 5.0F)));
    EXPECT_TRUE(at::equal(seen[2], torch::full({2}, 7.0F)));
  }
}

TEST(ReplaceParameter, SavedStatesAreThoseOfTheNewParameter) {
  const at::Tensor p = parameter({3, 2}), rows = rows_of({2, 0, -1, 1});
  AdamW adamw({p});
  set_grad(p, gradient(p, at::kFloat, 1));
  adamw.step();
  const at::Tensor now = parameter({4, 2}), same = now.detach().clone().requires_grad_();
  replace_parameter(adamw, p, now, rows);
  std::stringstream file;
  torch::save(adamw, file);
  AdamW read({same});
  torch::load(read, file);
  for (const at::Tensor& one : {now, same}) set_grad(one, gradient(one, at::kFloat, 2));
  adamw.step();
  read.step();
  EXPECT_TRUE(at::equal(now, same));
}

// Gathered; new rows begin as the weight.
TEST(ReplaceParameter, AveragesFollow) {
  struct Points : torch::nn::Module {
    at::Tensor means = register_parameter("means", parameter({3, 2}).detach());
    void set(const at::Tensor& now) { parameters_["means"] = means = now; }
  } points;
  SGD sgd({points.means}, SGDOptions(0.5));
  EMA ema(points, 0.75), copy = ema;
  const auto step = [&] {
    set_grad(points.means, gradient(points.means, at::kFloat, 1));
    sgd.step();
    ema.update(sgd.last_step());
  };
  step();
  const at::Tensor average = ema.averages().at("means").clone(),
                   first = copy.averages().at("means");
  const at::Tensor old = points.means, rows = rows_of({1, -1});
  points.set(torch::full({2, 2}, 4.0F).requires_grad_());
  ema.swap();
  EXPECT_THAT(complaint([&] { replace_parameter(sgd, old, points.means, rows); }),
              HasSubstr("the averages are in the place of the weights"));
  EXPECT_TRUE(sgd.param_groups()[0].params()[0].is_same(old)) << "nothing was changed";
  ema.swap();
  replace_parameter(sgd, old, points.means, rows);
  const at::Tensor gathered = ema.averages().at("means").clone();
  EXPECT_TRUE(at::equal(gathered[0], average[1]));
  EXPECT_TRUE(at::equal(gathered[1], torch::full({2}, 4.0F)));
  EXPECT_TRUE(at::equal(copy.averages().at("means")[0], first[1])) << "a copy of an average, too";
  step();
  EXPECT_TRUE(
      at::allclose(ema.averages().at("means"), 0.75 * gathered + 0.25 * points.means.detach()));
  {
    const EMA::InPlace in_place(ema);
    EXPECT_TRUE(at::equal(points.means, ema.averages().at("means")));
  }
  EXPECT_NO_THROW(ema.load(ema.averages()));
}

// Copies of the new weight are kept across regions, and demi::apply's dtype goes along.
TEST(ReplaceParameter, RegionsKnowTheNewParameter) {
  struct Table : torch::nn::Module {
    at::Tensor table = register_parameter("table", parameter({4, 8}).detach());
    void set(const at::Tensor& now) { parameters_["table"] = table = now; }
  };
  for (const bool is_marked : {false, true}) {
    Table module;
    if (is_marked) demi::apply(Policy("float32"), module);
    AdamW adamw({module.table}, AdamWOptions(0.5));
    const at::Tensor x = torch::ones({2, 8});
    const auto product = [&] {
      const Autocast region(at::kCPU, {.dtype = at::kBFloat16});
      return torch::linear(x, module.table);
    };
    const auto before = product().scalar_type();
    EXPECT_EQ(before, is_marked ? at::kFloat : at::kBFloat16);
    const at::Tensor old = module.table;
    module.set(torch::full({3, 8}, 2.0F).requires_grad_());
    replace_parameter(adamw, old, module.table, rows_of({0, 1, -1}));
    EXPECT_FALSE(weights::is_owned(old));
    EXPECT_TRUE(weights::is_owned(module.table));
    EXPECT_EQ(product().scalar_type(), before);
    EXPECT_TRUE(at::equal(product().to(at::kFloat), torch::full({2, 3}, 16.0F)));
    product().to(at::kFloat).sum().backward();
    EXPECT_EQ(module.table.grad().sizes(), module.table.sizes());
    adamw.step();
    EXPECT_FALSE(at::equal(product().to(at::kFloat), torch::full({2, 3}, 16.0F)));
  }
}

// What is recorded for a gradient is forgotten with it; the others keep theirs.
TEST(ReplaceParameter, RecordsOfTheOldGradientAreForgotten) {
  for (const bool narrow : {false, true}) {
    const at::Tensor p = parameter({3, 2}), q = parameter({4});
    SGD sgd({p, q}, SGDOptions(1), {.low_precision_grads = narrow});
    GradScaler scaler({.init_scale = 256});
    scaler.scale(torch::ones({}));
    const auto scaled = [&](const at::Tensor& of, float value) {
      return torch::full(of.sizes(), value * 256).to(narrow ? at::kBFloat16 : at::kFloat);
    };
    set_grad(p, scaled(p, 3));
    set_grad(q, scaled(q, 4));
    scaler.unscale_(sgd);
    const double norm = clip_grad_norm_({p, q}, 1.0).item<double>();
    EXPECT_NEAR(norm, std::sqrt(6 * 9 + 4 * 16), 1e-4);
    const at::Tensor q_before = q.detach().clone(), now = torch::zeros({2, 2}).requires_grad_();
    replace_parameter(sgd, p, now, rows_of({0, 1}));
    set_grad(now, torch::full({2, 2}, 8.0F));
    scaler.step(sgd);
    EXPECT_TRUE(at::allclose(now, torch::full({2, 2}, -8.0F))) << "neither divided nor clipped";
    EXPECT_TRUE(at::allclose(q, q_before - 4 / norm, 1e-4, 1e-4));
  }
}

TEST(ReplaceParameter, GroupsAndSchedulesStay) {
  const at::Tensor p = parameter({2, 2}), q = parameter({3, 2});
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector{p}, std::make_unique<SGDOptions>(0.5));
  groups.emplace_back(std::vector{q}, std::make_unique<SGDOptions>(0.25));
  SGD sgd(groups, SGDOptions(1));
  sgd.set_scheduled_rates(1, {1, 2, 4});
  const auto step = [&](const at::Tensor& one) {
    set_grad(one, torch::ones_like(one));
    const at::Tensor before = one.detach().clone();
    sgd.step();
    return (before - one.detach()).mean().item<double>();
  };
  EXPECT_NEAR(step(q), 1, 1e-6);
  const at::Tensor now = parameter({5, 2});
  replace_parameter(sgd, q, now, rows_of({0, 1, 2, -1, -1}));
  EXPECT_NEAR(step(now), 2, 1e-6);
  EXPECT_TRUE(sgd.param_groups()[1].params()[0].is_same(now));
  EXPECT_EQ(sgd.param_groups()[0].params().size(), 1U);
}

// Each group's rule gathers its own states.
TEST(ReplaceParameter, GroupsOfDifferentRulesKeepTheirs) {
  const at::Tensor p = parameter({3, 2}), q = parameter({3, 2});
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector{p}, std::make_unique<AdamWOptions>(0.1));
  groups.emplace_back(std::vector{q}, std::make_unique<AdagradOptions>(
                                          AdagradOptions(0.1).initial_accumulator_value(0.5)));
  MultiOptimizer both(groups);
  const auto step = [&](const std::vector<at::Tensor>& all) {
    for (const at::Tensor& one : all) set_grad(one, gradient(one, at::kFloat, 1));
    both.step();
  };
  step({p, q});
  const at::Tensor rows = rows_of({2, -1}), now = parameter({2, 2}), other = parameter({2, 2});
  const auto before = both.state_tensors();
  replace_parameter(both, p, now, rows);
  replace_parameter(both, q, other, rows);
  const auto state = both.state_tensors();
  EXPECT_TRUE(at::equal(state.at("0.exp_avg")[0], before.at("0.exp_avg")[2]));
  EXPECT_TRUE(at::equal(state.at("0.exp_avg_sq")[1], torch::zeros({2})));
  EXPECT_TRUE(at::equal(state.at("1.sum")[0], before.at("1.sum")[2]));
  EXPECT_TRUE(at::equal(state.at("1.sum")[1], torch::full({2}, 0.5F)));
  step({now, other});
  EXPECT_EQ(both.steps_taken(), 2);
}

// A parameter of two heads gets a third, and loses two.
TEST(ReplaceParameter, TheMatricesOfItsRowsAreSaidBefore) {
  const auto options = MuonOptions(0.05).weight_decay(0).products(MatrixProducts::fp32);
  const auto split = [&](Muon& muon, std::vector<int64_t> heads) {
    static_cast<MuonOptions&>(muon.param_groups()[0].options()).split_rows(std::move(heads));
  };
  at::Tensor p = parameter({8, 6});
  Muon muon({p}, MuonOptions(options).split_rows({4, 4}));
  std::vector<at::Tensor> heads;
  for (const at::Tensor& head : p.detach().split(4)) heads.push_back(head.clone().requires_grad_());
  Muon apart(heads, options);
  const auto step = [&] {
    set_grad(p, gradient(p, at::kFloat, 1));
    const auto grads = p.grad().split(4);
    for (std::size_t i = 0; i < heads.size(); ++i) set_grad(heads[i], grads[i].clone());
    muon.step();
    apart.step();
    EXPECT_TRUE(at::allclose(p, at::cat(heads), 0, 1e-5)) << p - at::cat(heads);
  };
  step();

  const at::Tensor more = parameter({12, 6});
  const at::Tensor rows = torch::cat({torch::arange(8), torch::full({4}, -1)});
  const auto before = muon.state_tensors();
  EXPECT_THAT(
      complaint([&] { replace_parameter(muon, p, more, rows); }),
      AllOf(HasSubstr("split_rows does not add up"), HasSubstr("seen: [4, 4] of shape [12, 6]"),
            HasSubstr("the sum 12"), HasSubstr("before replace_parameter")));
  EXPECT_TRUE(muon.param_groups()[0].params()[0].is_same(p)) << "nothing was changed";
  EXPECT_TRUE(muon.state_tensors().at("0.momentum_buffer").is_same(before.at("0.momentum_buffer")));
  step();

  split(muon, {4, 4, 4});
  more.detach().copy_(torch::cat({p.detach(), torch::ones({4, 6})}));
  replace_parameter(muon, p, more, rows);
  p = more;
  heads.push_back(torch::ones({4, 6}).requires_grad_());
  apart.add_param_group({{heads.back()}});
  step();
  step();

  const at::Tensor last = p.detach().slice(0, 8).clone().requires_grad_();
  split(muon, {4});
  replace_parameter(muon, p, last, torch::arange(8, 12));
  p = last;
  for (std::size_t i = 0; i < 2; ++i) heads[i].mutable_grad() = at::Tensor();
  heads.erase(heads.begin(), heads.begin() + 2);
  step();
}

// Half of the parameters.
struct HalfShare final : StateShare {
  bool holds(std::size_t parameter) const override { return parameter == 0; }
  void exchange(const StepResult&) override {}
};

TEST(ReplaceParameter, BadInputIsNamedAndChangesNothing) {
  const at::Tensor p = parameter({3, 2}), q = parameter({2}), rows = rows_of({0, 1, 2, -1});
  AdamW adamw({p, q});
  for (const at::Tensor& one : {p, q}) set_grad(one, gradient(one, at::kFloat, 1));
  adamw.step();
  const auto before = adamw.state_tensors();
  const at::Tensor now = parameter({4, 2});
  const auto refused = [&](const at::Tensor& old, const at::Tensor& by, const at::Tensor& which) {
    std::string message = complaint([&] { replace_parameter(adamw, old, by, which); });
    EXPECT_TRUE(adamw.param_groups()[0].params()[0].is_same(p));
    const auto after = adamw.state_tensors();
    for (const auto& [name, tensor] : before)
      EXPECT_TRUE(name == "taken" || tensor.is_same(after.at(name))) << name << message;
    return message;
  };
  EXPECT_THAT(refused(p, now, rows_of({0, 1, 3, -1})),
              AllOf(HasSubstr("out of range"), HasSubstr("seen: 3"), HasSubstr("0 to 2")));
  EXPECT_THAT(refused(p, now, rows_of({0, 1, 2, -2})), HasSubstr("out of range"));
  EXPECT_THAT(refused(p, now, rows_of({0, 1})), HasSubstr("int64, (4)"));
  EXPECT_THAT(refused(p, now, rows.to(at::kInt)), HasSubstr("int64, (4)"));
  EXPECT_THAT(refused(p, now, rows.view({2, 2})), HasSubstr("int64, (4)"));
  EXPECT_THAT(refused(p, now, {}), HasSubstr("int64, (4)"));
  EXPECT_THAT(refused(p, parameter({4, 2}, at::kBFloat16), rows), HasSubstr("another dtype"));
  EXPECT_THAT(refused(p, torch::empty({4, 2}, at::kMeta).requires_grad_(), rows),
              HasSubstr("another device"));
  EXPECT_THAT(refused(p, parameter({4, 3}), rows), HasSubstr("more than its number of rows"));
  EXPECT_THAT(refused(p, parameter({4}), rows), HasSubstr("more than its number of rows"));
  EXPECT_THAT(refused(p, parameter({4, 2, 1}), rows), HasSubstr("more than its number of rows"));
  EXPECT_THAT(refused(now, parameter({4, 2}), rows), HasSubstr("does not have the old parameter"));
  EXPECT_THAT(refused(p, p, rows_of({0, 1, 2})), HasSubstr("has the new parameter already"));
  EXPECT_THAT(refused(q, q, rows_of({0, 1})), HasSubstr("has the new parameter already"));
  EXPECT_THAT(refused(p, torch::ones({4, 2}), rows), HasSubstr("gets no gradient"));
  EXPECT_THAT(refused(p, now * 2, rows), HasSubstr("gets no gradient"));
  EXPECT_THAT(refused({}, now, rows), HasSubstr("undefined"));
  EXPECT_THAT(refused(p, {}, rows), HasSubstr("undefined"));
  EXPECT_THAT(refused(p, torch::ones({2}).expand({4, 2}).detach().requires_grad_(), rows),
              HasSubstr("share memory"));
}

TEST(ReplaceParameter, ASharedStateIsRefused) {
  const at::Tensor p = parameter({3, 2}), q = parameter({2});
  AdamW adamw({p, q});
  adamw.share_state(std::make_shared<HalfShare>());
  EXPECT_THAT(complaint([&] {
                replace_parameter(adamw, p, parameter({1, 2}), rows_of({0}));
              }),
              AllOf(HasSubstr("share the state"), HasSubstr("replace_parameter")));
}

}  // namespace
}  // namespace demi::optim
