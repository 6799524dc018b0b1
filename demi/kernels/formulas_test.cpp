#include "demi/kernels/formulas.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "demi/kernels/rule_info.h"
#include "demi/kernels/testing/step_case.h"

// The published formulas restated in FP80 (long double), step by step, against the FP32 step. Where
// the restatement starts each step from the FP32 state, one step may differ by the roundings of
// that step: some units in the last place of the largest term.
namespace demi::kernels {
namespace {

using testing::CaseOptions;
using testing::StepCase;
using Real = long double;

struct State {
  Real p, m, v, vmax;
};

/// Torch's own documentation of SGD, Adam and AdamW ("Algorithm" boxes of torch.optim), You et al.
/// 2020 and Chen et al. 2023.
State restated(UpdateRule rule, const Group& h, State s, Real g, int t) {
  const Real lr = h.learning_rate, wd = h.weight_decay, b1 = h.beta1, b2 = h.beta2, eps = h.epsilon;
  if (h.maximize) g = -g;
  if (rule == UpdateRule::sgd) {
    g += wd * s.p;
    if (h.momentum != 0) {
      s.m = t == 1 ? g : h.momentum * s.m + (1 - Real(h.dampening)) * g;
      g = h.nesterov ? g + h.momentum * s.m : s.m;
    }
    s.p -= lr * g;
    return s;
  }
  if (rule == UpdateRule::lion) {
    const Real c = b1 * s.m + (1 - b1) * g;
    s.p = s.p - lr * wd * s.p - lr * (c > 0 ? 1 : c < 0 ? -1 : 0);
    s.m = b2 * s.m + (1 - b2) * g;
    return s;
  }
  if (rule == UpdateRule::adam) g += wd * s.p;
  if (rule == UpdateRule::adamw) s.p -= lr * wd * s.p;
  s.m = b1 * s.m + (1 - b1) * g;
  s.v = b2 * s.v + (1 - b2) * g * g;
  if (h.amsgrad) s.vmax = std::max(s.vmax, s.v);
  const Real mhat = s.m / (1 - std::pow(b1, t)),
             vhat = (h.amsgrad ? s.vmax : s.v) / (1 - std::pow(b2, t));
  s.p -= lr * mhat / (std::sqrt(vhat) + eps);
  return s;
}

Real ulp(Real x) {
  const float f = std::fabs(static_cast<float>(x));
  return std::nextafterf(f, INFINITY) - f;
}

void expect_formula(UpdateRule rule, const Group& group, Real allowed_ulp) {
  CaseOptions options;
  options.rule = rule;
  options.group = group;
  options.gradient = Storage::fp32;
  options.gradient_range = 2.0f;
  options.scale = 1.0f;
  options.lengths = {300};
  StepCase one(options);
  for (int t = 1; t <= 5; ++t) {
    const TensorEntry& tensor = one.plan().tensors()[0];
    std::vector<State> expected;
    for (int i = 0; i < 300; ++i) {
      const State before{tensor.parameter[i], tensor.moment[0][i], tensor.moment[1][i],
                         tensor.moment[2][i]};
      expected.push_back(
          restated(rule, group, before, static_cast<const float*>(tensor.gradient)[i], t));
    }
    one.step(*cpu_kernels(Path::reference));
    for (int i = 0; i < 300; ++i) {
      const State& e = expected[i];
      const Real room = allowed_ulp * ulp(1.0f);  // parameters and gradients are of magnitude 1
      ASSERT_NEAR(tensor.parameter[i], e.p, room * std::max<Real>(1, std::fabs(e.p)))
          << "step " << t << " element " << i;
      if (states_kept(rule, group) != 0) {
        ASSERT_NEAR(tensor.moment[0][i], e.m, room * std::max<Real>(1, std::fabs(e.m)));
      }
      if (rule == UpdateRule::adam || rule == UpdateRule::adamw) {
        ASSERT_NEAR(tensor.moment[1][i], e.v, room);
      }
    }
  }
}

Group with(double lr, double wd) {
  Group group;
  group.learning_rate = lr;
  group.weight_decay = wd;
  return group;
}

TEST(Formulas, Sgd) {
  Group group = with(0.1, 0.01);
  expect_formula(UpdateRule::sgd, group, 2);
  group.momentum = 0.9;
  expect_formula(UpdateRule::sgd, group, 3);
  group.dampening = 0.25;
  expect_formula(UpdateRule::sgd, group, 3);
  group.dampening = 0;
  group.nesterov = true;
  expect_formula(UpdateRule::sgd, group, 3);
  group.maximize = true;
  expect_formula(UpdateRule::sgd, group, 3);
}

TEST(Formulas, Adam) {
  Group group = with(0.01, 0.1);
  expect_formula(UpdateRule::adam, group, 2);
  group.amsgrad = true;
  expect_formula(UpdateRule::adam, group, 2);
  group.maximize = true;
  group.beta1 = 0.3;
  expect_formula(UpdateRule::adam, group, 2);
}

TEST(Formulas, AdamW) {
  Group group = with(0.01, 0.1);
  expect_formula(UpdateRule::adamw, group, 2);
  group.amsgrad = true;
  group.maximize = true;
  expect_formula(UpdateRule::adamw, group, 2);
}

TEST(Formulas, Lion) { expect_formula(UpdateRule::lion, with(0.01, 0.1), 2); }

// You et al. 2020, algorithm 2, over a whole tensor.
TEST(Formulas, Lamb) {
  for (const double trust_limit : {std::numeric_limits<double>::infinity(), 0.05}) {
    Group group = with(0.1, 0.02);
    group.epsilon = 1e-6;
    group.trust_limit = trust_limit;
    CaseOptions options;
    options.rule = UpdateRule::lamb;
    options.group = group;
    options.gradient = Storage::fp32;
    options.scale = 1.0f;
    options.lengths = {20000};
    StepCase one(options);
    const TensorEntry& tensor = one.plan().tensors()[0];
    for (int t = 1; t <= 3; ++t) {
      std::vector<Real> before(20000), update(20000);
      Real parameter_squares = 0, update_squares = 0;
      for (int i = 0; i < 20000; ++i) {
        const Real g = static_cast<const float*>(tensor.gradient)[i];
        const Real m = group.beta1 * Real(tensor.moment[0][i]) + (1 - Real(group.beta1)) * g;
        const Real v = group.beta2 * Real(tensor.moment[1][i]) + (1 - Real(group.beta2)) * g * g;
        before[i] = tensor.parameter[i];
        update[i] =
            m / (1 - std::pow(Real(group.beta1), t)) /
                (std::sqrt(v / (1 - std::pow(Real(group.beta2), t))) + Real(group.epsilon)) +
            Real(group.weight_decay) * before[i];
        parameter_squares += before[i] * before[i];
        update_squares += update[i] * update[i];
      }
      Real ratio = std::sqrt(parameter_squares / update_squares);
      ratio = std::min(ratio, Real(group.trust_limit));
      one.step(*cpu_kernels(Path::reference));
      for (int i = 0; i < 20000; ++i) {
        const Real expected = before[i] - Real(group.learning_rate) * ratio * update[i];
        ASSERT_NEAR(tensor.parameter[i], expected,
                    4 * ulp(1.0f) * std::max<Real>(1, std::fabs(ratio * update[i])));
      }
    }
  }
}

TEST(Formulas, LambTrustRatioIsOneWhereANormIsZero) {
  Group group = with(0.5, 0.0);
  CaseOptions options;
  options.rule = UpdateRule::lamb;
  options.group = group;
  options.gradient = Storage::fp32;
  options.lengths = {3};
  StepCase one(options);
  TensorEntry& tensor = one.plan().tensors()[0];
  for (int i = 0; i < 3; ++i) {
    tensor.parameter[i] = tensor.moment[0][i] = tensor.moment[1][i] = 0.0f;
    one.set_gradient(0, i, 65536.0f);
  }
  one.step(*cpu_kernels(Path::reference));
  EXPECT_NEAR(tensor.parameter[0], -0.5f, 1e-6f);  // m̂ / sqrt(v̂) = 1
}

TEST(Formulas, EmaIsExactAtBothEnds) {
  EXPECT_EQ(lerp(3.0f, 5.0f, 0.0f), 3.0f);
  EXPECT_EQ(lerp(0.1f, 0.7f, 1.0f), 0.7f);
  EXPECT_EQ(lerp(1.0f, 3.0f, 0.25f), 1.5f);
}

TEST(Formulas, MaximumSignAndClampOnAwkwardValues) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(maximum(kNaN, 1.0f)));
  EXPECT_TRUE(std::isnan(maximum(1.0f, kNaN)));
  EXPECT_EQ(maximum(1.0f, 2.0f), 2.0f);
  EXPECT_EQ(sign(-0.0f), 0.0f);
  EXPECT_EQ(sign(kNaN), 0.0f);
  EXPECT_EQ(sign(-1e-45f), -1.0f);
  EXPECT_TRUE(std::isnan(clamp(kNaN, 1.0f)));
  EXPECT_EQ(clamp(-INFINITY, 2.0f), -2.0f);
}

}  // namespace
}  // namespace demi::kernels
