// The rule of a limit by the norm, against the mean and the deviation written out.
#include "demi/step/norm_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <deque>
#include <limits>
#include <vector>

#include "demi/core/error.h"
#include "demi/weights/recorded_warnings_testing.h"

namespace demi::optim {
namespace {

using ::testing::HasSubstr;

constexpr double kInf = std::numeric_limits<double>::infinity();

at::Tensor number(double value) { return at::scalar_tensor(value, at::kFloat); }

NormPart part(double norm, bool bad = false) { return {number(norm), number(bad ? 1 : 0)}; }

/// One step whose gradients have this norm. Returns whether it is skipped for it.
bool step(NormGuard& guard, double norm, bool bad = false) {
  const JointNorm joint = joint_norm({part(norm, bad)});
  const NormDecision decision{joint, guard.is_above(joint.norm)};
  const bool above = decision.above.item<float>() != 0;
  guard.note(decision, number(above || bad ? 1 : 0));
  return above;
}

double usual(int i) { return 1 + 0.25 * std::sin(i * 0.7); }

/// The rule with the last 128 norms of steps that were taken, in FP64.
bool expected(const std::deque<double>& seen, double norm, double deviations) {
  if (seen.size() < 128) return false;
  double mean = 0, squares = 0;
  for (const double one : seen) mean += one / 128;
  for (const double one : seen) squares += (one - mean) * (one - mean) / 128;
  return squares > 0 && (norm - mean) / std::sqrt(squares) > deviations;
}

TEST(NormGuard, ABoundIsTheNormItself) {
  NormGuard guard({.bound = 2});
  EXPECT_FALSE(step(guard, 2));
  EXPECT_TRUE(step(guard, 2.000001));
  EXPECT_TRUE(step(guard, kInf)) << "of finite gradients, whose norm FP32 does not hold";
  EXPECT_FALSE(step(guard, 0));
  EXPECT_FALSE(guard.window().defined());
}

TEST(NormGuard, DeviationsAreThoseOfTheLast128StepsThatWereTaken) {
  NormGuard guard({.deviations = 4});
  std::deque<double> seen;
  int skipped = 0;
  for (int i = 0; i < 400; ++i) {
    const int factor = i % 37 == 36 ? 1 + i / 74 : 1;
    const double norm = usual(i) * factor;
    const auto held = static_cast<double>(static_cast<float>(norm));
    const bool is_above = expected(seen, held, 4);
    ASSERT_EQ(step(guard, norm), is_above) << i;
    skipped += is_above;
    if (is_above) continue;
    seen.push_back(held);
    if (seen.size() > 128) seen.pop_front();
  }
  EXPECT_GE(skipped, 5);
  EXPECT_LE(skipped, 10);
  for (int i = 0; i < 128; ++i)
    ASSERT_EQ(guard.window()[i].item<float>(), static_cast<float>(seen[static_cast<size_t>(i)]));
}

// Norms of 1 and 3: the mean is 2, the deviation of all 128 is 1.
TEST(NormGuard, ANormThatIsTheLimitIsNotAbove) {
  NormGuard guard({.bound = 20, .deviations = 4});
  for (int i = 0; i < 128; ++i) ASSERT_FALSE(step(guard, i % 2 == 0 ? 1 : 3));
  EXPECT_FALSE(guard.is_above(number(6)).item<bool>());
  EXPECT_TRUE(guard.is_above(number(6.001)).item<bool>());
}

TEST(NormGuard, OfTwoLimitsEachHolds) {
  NormGuard guard({.bound = 2.5, .deviations = 4});
  EXPECT_TRUE(step(guard, 3)) << "before 128 steps, too";
  for (int i = 0; i < 128; ++i) ASSERT_FALSE(step(guard, i % 2 == 0 ? 1 : 1.25));
  EXPECT_TRUE(step(guard, 2)) << "by deviations";
  NormGuard wide({.bound = 2.5, .deviations = 40});
  for (int i = 0; i < 128; ++i) ASSERT_FALSE(step(wide, i % 2 == 0 ? 1 : 1.25));
  EXPECT_TRUE(step(wide, 3)) << "by the bound";
}

TEST(NormGuard, NothingIsSkippedBefore128StepsOrWithEqualNorms) {
  NormGuard guard({.deviations = 1});
  for (int i = 0; i < 127; ++i) ASSERT_FALSE(step(guard, 3)) << i;
  EXPECT_FALSE(step(guard, 3)) << "the 128th";
  EXPECT_FALSE(step(guard, 4)) << "128 norms of 3 say nothing of 4";
  EXPECT_TRUE(step(guard, 40));
}

TEST(NormGuard, ANormThatIsNoneDoesNotCount) {
  NormGuard guard({.deviations = 4});
  for (int i = 0; i < 128; ++i) step(guard, usual(i));
  const at::Tensor before = guard.window().clone();
  EXPECT_FALSE(step(guard, std::nan(""), /*bad=*/true)) << "skipped for that, not for its norm";
  EXPECT_FALSE(step(guard, kInf, /*bad=*/true));
  EXPECT_TRUE(step(guard, kInf));
  EXPECT_TRUE(at::equal(guard.window(), before));
  // Taken all the same: the norm is that of a part of the gradients.
  guard.note({joint_norm({part(1), part(kInf, true)}), number(0)}, number(0));
  EXPECT_TRUE(at::equal(guard.window(), before));
  NormGuard young({.deviations = 4});
  EXPECT_FALSE(step(young, kInf)) << "too early";
  EXPECT_EQ(young.window().max().item<float>(), -1);
}

TEST(NormGuard, OfSeveralPartsTheNormIsThatOfAllThatAreFinite) {
  const JointNorm all = joint_norm({part(3), part(4)}), one = joint_norm({part(3), part(9, true)});
  EXPECT_EQ(all.norm.item<float>(), 5);
  EXPECT_EQ(all.finite.item<float>(), 1);
  EXPECT_EQ(one.norm.item<float>(), 3);
  EXPECT_EQ(one.finite.item<float>(), 0);
  EXPECT_EQ(joint_norm({part(9, true), part(3)}).finite.item<float>(), 0);
  EXPECT_EQ(joint_norm({part(3e30), part(4e30)}).norm.item<float>(), 5e30F) << "squares in FP64";
}

TEST(NormGuard, GoesOnWithAWindowOfBefore) {
  NormGuard one({.deviations = 4}), other({.deviations = 4}), bound({.bound = 1});
  for (int i = 0; i < 140; ++i) step(one, usual(i));
  other.set_window(one.window());
  bound.set_window(one.window());
  EXPECT_FALSE(bound.window().defined());
  EXPECT_TRUE(step(other, 9));
  other.set_window({});
  EXPECT_FALSE(step(other, 9)) << "begun anew";
}

TEST(NormGuard, WarnsOnceOfEachRunOfSkippedSteps) {
  const weights::testing::RecordedWarnings warnings;
  NormGuard guard({.bound = 1});
  for (int i = 0; i < 19; ++i) step(guard, 2);
  step(guard, 1);
  for (int i = 0; i < 19; ++i) step(guard, 2);
  EXPECT_EQ(warnings.messages().size(), 0);
  for (int i = 0; i < 20; ++i) step(guard, 2);
  EXPECT_EQ(warnings.holding("20 steps in a row"), 1);
  EXPECT_EQ(warnings.messages().size(), 1);
  step(guard, 1);
  for (int i = 0; i < 20; ++i) step(guard, 2);
  EXPECT_EQ(warnings.messages().size(), 2) << "the next run";
}

TEST(NormGuard, AStepThatIsSkippedForInfNeitherEndsARunNorIsOfIt) {
  const weights::testing::RecordedWarnings warnings;
  NormGuard guard({.bound = 1});
  for (int i = 0; i < 19; ++i) step(guard, 2);
  for (int i = 0; i < 3; ++i) step(guard, 0, /*bad=*/true);
  EXPECT_EQ(warnings.messages().size(), 0);
  step(guard, 2);
  EXPECT_EQ(warnings.holding("20 steps in a row"), 1);
}

TEST(NormGuard, ALoadedWindowBeginsTheCountAnew) {
  const weights::testing::RecordedWarnings warnings;
  NormGuard guard({.bound = 1});
  for (int i = 0; i < 19; ++i) step(guard, 2);
  guard.set_window({});
  for (int i = 0; i < 19; ++i) step(guard, 2);
  EXPECT_EQ(warnings.messages().size(), 0);
}

template <class Call>
std::string complaint(const Call& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(NormGuard, RefusesWhatIsNoLimitAndNoWindow) {
  for (const double wrong : {0.0, -1.0, std::nan("")}) {
    EXPECT_THAT(complaint([&] { NormGuard({.bound = wrong}); }), HasSubstr("bound"));
    EXPECT_THAT(complaint([&] { NormGuard({.deviations = wrong}); }), HasSubstr("deviations"));
  }
  EXPECT_THAT(complaint([] { NormGuard({}); }), HasSubstr("no limit"));
  NormGuard guard({.deviations = 4});
  for (const at::Tensor& wrong :
       {at::zeros({127}), at::zeros({128}, at::kDouble), at::full({128}, -2.0F),
        at::full({128}, std::nanf("")), at::zeros({1, 128})})
    EXPECT_THAT(complaint([&] { guard.set_window(wrong); }), HasSubstr("-1: none yet"));
}

}  // namespace
}  // namespace demi::optim
