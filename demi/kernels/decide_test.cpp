#include "demi/kernels/decide.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "demi/kernels/decision.h"
#include "demi/kernels/loss_scale.h"
#include "demi/kernels/testing/step_case.h"

namespace demi::kernels {
namespace {

using testing::CaseOptions;
using testing::StepCase;

constexpr std::uint32_t kOneBits = 0x3F800000u;
constexpr std::uint32_t kInfinityBits = 0x7F800000u;

StepState sums(const StepInputs& inputs, double squares, std::uint32_t greatest = kOneBits) {
  StepState state;
  record_sums(inputs, squares, greatest, state);
  return state;
}

TEST(Decide, TheNormIsOfTheUnscaledGradients) {
  const float scale = 8.0f;
  StepInputs inputs;
  inputs.scale = &scale;
  const StepState state = sums(inputs, 64.0 * 64.0);
  EXPECT_EQ(state.inverse_scale, 0.125f);
  EXPECT_EQ(state.gradient_norm, 8.0f);
  EXPECT_EQ(state.found_inf, 0.0f);
}

// torch.nn.utils.clip_grad_norm_: max_norm / (norm + 1e-6), at most 1.
TEST(Decide, TheClipFactorIsOfTheNormAndTheLimitOfTheMoment) {
  EXPECT_EQ(clip_factor_of(1.0f, 8.0f), 1.0f / (8.0f + 1e-6f));
  EXPECT_EQ(clip_factor_of(100.0f, 8.0f), 1.0f);
  EXPECT_EQ(clip_factor_of(kNoLimit, 8.0f), 1.0f);
  EXPECT_EQ(clip_factor_of(kNoLimit, 0.0f), 1.0f);
  EXPECT_TRUE(std::isnan(clip_factor_of(1.0f, NAN)));
  StepInputs inputs;
  StepState state = sums(inputs, 16.0);
  const float scale = 2.0f;  // a scale that is told after the gradients were clipped
  inputs.scale = &scale;
  inputs.max_norm = 1.0f;
  EXPECT_TRUE(record_decision(inputs, state));
  EXPECT_EQ(state.clip_factor, 1.0f / (4.0f + 1e-6f));
  EXPECT_EQ(state.inverse_scale, 0.5f);
}

TEST(Decide, SumsOfUnscaledGradientsTakeTheScaleOn) {
  const Partial with = with_scale({3.0, kOneBits, 0}, 0.25f);
  EXPECT_EQ(with.sum_of_squares, 48.0);
  EXPECT_EQ(std::bit_cast<float>(with.greatest_bits), 4.0f);
  EXPECT_EQ(with_scale({1.0, 0x7F000000u, 0}, 0.25f).greatest_bits, 0x7F7FFFFFu);  // still finite
  EXPECT_EQ(with_scale({1.0, kInfinityBits, 0}, 0.25f).greatest_bits, kInfinityBits);
}

TEST(Decide, TheRecordTellsWhatTheStepDid) {
  const float scale = 0.5f;
  StepRecord record{9, 9, 9, 9, 9};
  StepInputs inputs;
  inputs.scale = &scale;
  inputs.record = &record;
  StepState state = sums(inputs, 4.0, 0x7F7FFFFFu);
  EXPECT_EQ(record.gradient_norm, 4.0f);
  EXPECT_EQ(record.found_inf, 0.0f);
  EXPECT_EQ(record.greatest, std::numeric_limits<float>::max());  // doubled, it would be Inf
  state.found_inf = 1.0f;
  EXPECT_FALSE(record_decision(inputs, state));
  EXPECT_EQ(record.skipped, 1.0f);
  EXPECT_EQ(record.scale, 0.5f);
  EXPECT_EQ(record.gradient_norm, 4.0f);
  sums(inputs, 4.0, kInfinityBits);
  EXPECT_EQ(record.found_inf, 1.0f);
  EXPECT_TRUE(std::isinf(record.greatest));
  inputs.measured = false;
  inputs.skip_nonfinite = false;
  EXPECT_TRUE(record_decision(inputs, state));
  EXPECT_TRUE(std::isnan(record.gradient_norm));
  EXPECT_EQ(record.found_inf, 0.0f);
  EXPECT_EQ(record.skipped, 0.0f);
}

TEST(Decide, FoundInfComesFromTheExponentBits) {
  EXPECT_EQ(sums({}, 1e77, 0x7F7FFFFFu).found_inf, 0.0f);
  EXPECT_EQ(sums({}, INFINITY, kInfinityBits).found_inf, 1.0f);
  EXPECT_EQ(sums({}, NAN, kInfinityBits + 1).found_inf, 1.0f);
}

TEST(Decide, InverseScaleIsRoundedOnce) {
  const float scale = 3.0f;
  StepInputs inputs;
  inputs.scale = &scale;
  EXPECT_EQ(sums(inputs, 1.0).inverse_scale, static_cast<float>(1.0 / 3.0));
}

TEST(Decide, TakesOrSkips) {
  StepInputs inputs;
  StepState state;
  EXPECT_TRUE(record_decision(inputs, state));
  state.found_inf = 1.0f;
  EXPECT_FALSE(record_decision(inputs, state));
  EXPECT_EQ(state.skipped, 1.0f);
  inputs.skip_nonfinite = false;
  EXPECT_TRUE(record_decision(inputs, state));
  EXPECT_EQ(state.skipped, 0.0f);
  inputs.skip_nonfinite = true;
  const float joint_clean = 0.0f, joint_found = 1.0f;
  inputs.found_inf = &joint_clean;
  EXPECT_TRUE(record_decision(inputs, state));
  state.found_inf = 0.0f;
  inputs.found_inf = &joint_found;
  EXPECT_FALSE(record_decision(inputs, state));
  EXPECT_EQ(state.taken, 3);
  EXPECT_EQ(state.skips, 2);
}

// Skipped for an Inf, a step was not skipped for its norm.
TEST(Decide, ANormAboveItsLimitSkipsWhateverElseIsSaid) {
  for (const bool skips_nonfinite : {true, false})
    for (const float found : {0.0f, 1.0f})
      for (const float above : {0.0f, 1.0f}) {
        StepRecord record{};
        StepInputs inputs;
        inputs.skip_nonfinite = skips_nonfinite;
        inputs.found_inf = &found;
        inputs.above_norm = &above;
        inputs.record = &record;
        StepState state = sums(inputs, 4.0);
        const bool bad = skips_nonfinite && found != 0, is_above = above != 0 && !bad;
        EXPECT_EQ(record_decision(inputs, state), !bad && !is_above);
        EXPECT_EQ(record.skipped, bad || is_above ? 1.0f : 0.0f);
        EXPECT_EQ(record.above_norm, is_above ? 1.0f : 0.0f);
        EXPECT_EQ(state.taken, bad || is_above ? 0 : 1);
      }
}

// Neither the scale nor its growth nor the skips hear of a step that was skipped for its norm.
TEST(Decide, ANormAboveItsLimitMovesNoScale) {
  struct Moved {
    float scale = 8.0f, in_a_row = 2.0f, skips = 5.0f;
    std::int32_t growth = 3, hysteresis = 1;
  };
  const auto after = [](float found, const float* above) {
    Moved now;
    float mirror[3] = {};
    const LossScaleRule rule{.growth_factor = 2,
                             .backoff_factor = 0.5,
                             .min_scale = 1,
                             .max_scale = 1e9,
                             .growth_interval = 4,
                             .hysteresis = 1,
                             .refill_hysteresis = false,
                             .moves = true};
    advance(LossScaleUpdate{.rule = rule,
                            .scale = &now.scale,
                            .growth_tracker = &now.growth,
                            .hysteresis_tracker = &now.hysteresis,
                            .skips_in_a_row = &now.in_a_row,
                            .skips = &now.skips,
                            .mirror = mirror,
                            .found_inf = &found,
                            .above_norm = above});
    EXPECT_EQ(mirror[0], now.in_a_row);
    EXPECT_EQ(mirror[1], now.scale);
    EXPECT_EQ(mirror[2], now.skips);
    return now;
  };
  const float yes = 1.0f, no = 0.0f;
  const Moved skipped = after(0, &yes);
  EXPECT_EQ(skipped.scale, 8.0f);
  EXPECT_EQ(skipped.growth, 3);
  EXPECT_EQ(skipped.in_a_row, 2.0f);
  EXPECT_EQ(skipped.skips, 5.0f);
  for (const float* above : {&no, static_cast<const float*>(nullptr)}) {
    const Moved taken = after(0, above);
    EXPECT_EQ(taken.scale, 16.0f);
    EXPECT_EQ(taken.growth, 0);
    EXPECT_EQ(taken.in_a_row, 0.0f);
    EXPECT_EQ(taken.skips, 5.0f);
  }
  const Moved overflowed = after(1, &yes);
  EXPECT_EQ(overflowed.scale, 4.0f);
  EXPECT_EQ(overflowed.in_a_row, 3.0f);
  EXPECT_EQ(overflowed.skips, 6.0f);
}

TEST(Decide, ScheduledRatesFollowTheStepsTaken) {
  const double rates[] = {0.5, 0.25, 0.125};
  Group group;
  group.learning_rate = 9.0;
  EXPECT_EQ(learning_rate(group, 0), 9.0);
  group.scheduled_rates = rates;
  group.scheduled_count = 3;
  EXPECT_EQ(learning_rate(group, 0), 0.5);
  EXPECT_EQ(learning_rate(group, 2), 0.125);
  EXPECT_EQ(learning_rate(group, 7), 0.125);
}

TEST(Decide, ASkipDoesNotAdvanceTheSchedule) {
  const double rates[] = {1.0, 2.0};
  CaseOptions options;
  options.rule = UpdateRule::sgd;
  options.group.scheduled_rates = rates;
  options.group.scheduled_count = 2;
  options.gradient = Storage::fp32;
  options.scale = 1.0f;
  options.lengths = {1};
  StepCase one(options);
  const auto move_by = [&](float gradient) {
    const float before = one.parameter(0)[0] = 0.0f;
    one.set_gradient(0, 0, gradient);
    one.step(*cpu_kernels(Path::reference));
    return one.parameter(0)[0] - before;
  };
  EXPECT_EQ(move_by(INFINITY), 0.0f);
  EXPECT_EQ(move_by(1.0f), -1.0f);
  EXPECT_EQ(move_by(INFINITY), 0.0f);
  EXPECT_EQ(move_by(1.0f), -2.0f);
}

// Adam's bias corrections at step t, the numbers from Python: 1 - 0.9 ** 3, 1 - 0.999 ** 3.
TEST(Decide, CoefficientsAreRoundedOnceFromFp64) {
  Group group;
  group.learning_rate = 0.001;
  const Coefficients c = group_coefficients(UpdateRule::adam, group, 0.001, 3);
  EXPECT_EQ(c.inverse_correction1, static_cast<float>(1 / 0.2709999999999999));
  EXPECT_EQ(c.inverse_correction2, static_cast<float>(1 / 0.0029970009999999983));
  EXPECT_EQ(c.root_bias_correction2, static_cast<float>(std::sqrt(0.0029970009999999983)));
  EXPECT_EQ(c.negative_rate, static_cast<float>(-0.0036900369003690045));
  EXPECT_EQ(c.one_minus_beta2, static_cast<float>(0.0010000000000000009));
  EXPECT_EQ(c.flags & kFirst, 0u);
  EXPECT_EQ(group_coefficients(UpdateRule::adam, group, 0.001, 1).flags & kFirst,
            static_cast<std::uint32_t>(kFirst));
}

TEST(Decide, GroupsAndStepCountsOfTensorsAreTheirOwn) {
  CaseOptions options;
  options.rule = UpdateRule::adam;
  options.lengths = {4, 4, 4};
  StepCase one(options);
  one.plan().tensors()[1].gradient = nullptr;
  one.step(*cpu_kernels(Path::reference));
  one.plan().tensors()[1].gradient = one.plan().tensors()[0].gradient;
  one.step(*cpu_kernels(Path::reference));
  EXPECT_EQ(one.step_count(0), 2);
  EXPECT_EQ(one.step_count(1), 1);
  EXPECT_EQ(one.step_count(2), 2);
  const Coefficients* c = one.plan().table().coefficients;
  EXPECT_EQ(c[0].negative_rate, c[2].negative_rate);
  EXPECT_NE(c[0].negative_rate, c[1].negative_rate);
}

TEST(Decide, GroupsAtOneStepHaveNumbersOfTheirOwn) {
  std::int64_t steps[4] = {};
  float values[4] = {};
  std::vector<TensorEntry> tensors(4);
  for (int t = 0; t < 4; ++t) {
    tensors[t].parameter = values + t;
    tensors[t].gradient = values + t;
    tensors[t].step = steps + t;
    tensors[t].length = 1;
    tensors[t].group = t % 2;
  }
  StepPlan plan(UpdateRule::sgd, tensors, {{.learning_rate = 0.5}, {.learning_rate = 0.25}});
  decide(plan.table());
  const Coefficients* c = plan.table().coefficients;
  EXPECT_EQ(c[0].negative_rate, -0.5f);
  EXPECT_EQ(c[1].negative_rate, -0.25f);
  EXPECT_EQ(c[2].negative_rate, -0.5f);
  EXPECT_EQ(c[3].negative_rate, -0.25f);
}

TEST(Decide, AScaleThatIsNoneSkipsWhateverElseIsSaid) {
  StepInputs inputs;
  inputs.skip_nonfinite = false;
  StepState state;
  float scale = 0;
  inputs.scale = &scale;
  for (const float bad : {0.0f, -2.0f, INFINITY, NAN, 1e-45f}) {
    scale = bad;
    EXPECT_FALSE(record_decision(inputs, state)) << bad;
  }
  scale = 3e38f;
  EXPECT_TRUE(record_decision(inputs, state));
  EXPECT_EQ(state.skips, 5);
  EXPECT_EQ(state.taken, 1);
}

TEST(Decide, AScheduleWithoutEntriesIsNone) {
  const double rates[] = {0.5};
  Group group;
  group.learning_rate = 9.0;
  group.scheduled_rates = rates;
  EXPECT_EQ(learning_rate(group, 0), 9.0);
}

TEST(Decide, FactorsAndLimitsAreOfTheTensor) {
  const float factor = 0.25f;
  TensorEntry tensor;
  const Coefficients group = group_coefficients(UpdateRule::sgd, Group{}, 1.0, 1);
  const Coefficients plain = tensor_coefficients(group, tensor);
  EXPECT_EQ(plain.factor, 1.0f);
  EXPECT_EQ(plain.limit, kNoLimit);
  EXPECT_EQ(plain.flags & kLimited, 0u);
  tensor.factor = &factor;
  tensor.limit = 2.0f;
  const Coefficients own = tensor_coefficients(group, tensor);
  EXPECT_EQ(own.factor, 0.25f);
  EXPECT_EQ(own.limit, 2.0f);
  EXPECT_EQ(own.flags, plain.flags | kLimited);
}

// Decoupled: the weight is multiplied by 1 - lr x decay (Loshchilov and Hutter 2019, Chen et al.
// 2023); else the decay is added to the gradient or the update.
TEST(Decide, DecayIsDecoupledForAdamWAndLionOnly) {
  Group group;
  group.weight_decay = 0.5;
  for (const UpdateRule rule :
       {UpdateRule::sgd, UpdateRule::adam, UpdateRule::adamw, UpdateRule::lamb, UpdateRule::lion}) {
    const bool decoupled = rule == UpdateRule::adamw || rule == UpdateRule::lion;
    const Coefficients c = group_coefficients(rule, group, 0.25, 2);
    EXPECT_EQ(c.decay, decoupled ? 0.875f : 0.5f);
    EXPECT_NE(c.flags & kDecay, 0u);
  }
  EXPECT_EQ(group_coefficients(UpdateRule::adam, Group{}, 0.25, 2).flags & kDecay, 0u);
}

TEST(Decide, EachFlagSaysWhatTheGroupAsksFor) {
  const auto flags = [](UpdateRule rule, Group group) {
    return group_coefficients(rule, group, 0.25, 2).flags;
  };
  EXPECT_EQ(flags(UpdateRule::sgd, {}), 0u);
  EXPECT_EQ(flags(UpdateRule::sgd, {.momentum = 0.5}), static_cast<std::uint32_t>(kMomentum));
  EXPECT_EQ(flags(UpdateRule::lion, {.momentum = 0.5}), 0u);
  EXPECT_EQ(flags(UpdateRule::sgd, {.momentum = 0.5, .nesterov = true}), kMomentum | kNesterov);
  EXPECT_EQ(flags(UpdateRule::adam, {.amsgrad = true}), static_cast<std::uint32_t>(kAmsgrad));
  EXPECT_EQ(flags(UpdateRule::lamb, {.maximize = true}), static_cast<std::uint32_t>(kMaximize));
  EXPECT_EQ(flags(UpdateRule::ema, {.maximize = true}), 0u);
  EXPECT_EQ(group_coefficients(UpdateRule::ema, {}, 0.25, 2).negative_rate, 0.25f);
  EXPECT_EQ(group_coefficients(UpdateRule::lion, {}, 0.25, 2).negative_rate, -0.25f);
}

TEST(Decide, TrustIsOfTheStepTakenAndOfTensorsWithGradients) {
  const double rates[] = {1.0, 0.5, 8.0};
  CaseOptions options;
  options.rule = UpdateRule::lamb;
  options.lengths = {1, 1};
  options.group.scheduled_rates = rates;
  options.group.scheduled_count = 3;
  StepCase one(options);
  const StepTable table = one.plan().table();
  table.state->taken = 2;  // the second of them, with rates[1], is the one that is being applied
  for (int t = 0; t < 2; ++t) {
    table.trust[t] = {16.0, 4.0};
    table.coefficients[t].negative_rate = 77.0f;
  }
  one.plan().tensors()[1].gradient = nullptr;
  decide_trust(table);
  EXPECT_EQ(table.coefficients[0].negative_rate, -1.0f);  // 0.5 x 4 / 2
  EXPECT_EQ(table.coefficients[1].negative_rate, 77.0f);
  table.state->skipped = 1.0f;
  table.coefficients[0].negative_rate = 77.0f;
  decide_trust(table);
  EXPECT_EQ(table.coefficients[0].negative_rate, 77.0f);
}

TEST(Decide, TrustRate) {
  Group group;
  EXPECT_EQ(trust_rate(group, 0.5, 16.0, 4.0), -1.0f);
  EXPECT_EQ(trust_rate(group, 0.5, 0.0, 4.0), -0.5f);
  EXPECT_EQ(trust_rate(group, 0.5, 16.0, 0.0), -0.5f);
  group.trust_limit = 1.5;
  EXPECT_EQ(trust_rate(group, 0.5, 16.0, 4.0), -0.75f);
  group.adapt = false;
  EXPECT_EQ(trust_rate(group, 0.5, 16.0, 4.0), -0.5f);
}

}  // namespace
}  // namespace demi::kernels
