#include "demi/step/step_records.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace demi::optim {
namespace {

/// The records of two tensors, p and q, along a list of events.
class Walk {
 public:
  explicit Walk(std::size_t tensors = 2) { records_.tensors.resize(tensors); }

  Walk& operator()(const Event& event) {
    records_ = after(std::move(records_), event);
    return *this;
  }
  /// A mark for each tensor: . no gradient, = the held one, w written to, n another.
  Walk& look(std::string_view marks) { return (*this)(Looked{seen(marks)}); }
  Walk& end_inspection(std::string_view marks) { return (*this)(InspectionEnded{seen(marks)}); }
  /// Gradients of a backward, measured and held, as GradScaler::step() and clipping begin.
  Walk& measured() { return look("nn")(Measured{})(Held{}); }

  /// The records in words; empty if there are none.
  std::string text() const {
    std::string words;
    const auto add = [&](bool is, const std::string& word) {
      if (is) words += (words.empty() || words.back() == '|' ? "" : " ") + word;
    };
    add(records_.scaled == Scaled::kAll, "scaled");
    add(records_.scaled == Scaled::kNarrow, "scaled-16");
    add(records_.norm == Norm::kCurrent, "norm");
    add(records_.norm == Norm::kOutdated, "old-norm");
    add(records_.scope == Scope::kHeld, "held");
    add(records_.scope == Scope::kSealed, "sealed");
    add(records_.clips(), "clip");
    add(records_.factors, "factors");
    add(records_.flagged, "flag");
    add(records_.takes_nonfinite, "take");
    for (const TensorRecord& tensor : records_.tensors) {
      words += '|';
      add(tensor.held, "held");
      add(tensor.measured, "measured");
      add(tensor.factor, "factor");
      add(tensor.limit != kernels::kNoLimit, "limit");
      add(tensor.shown, "shown");
    }
    return words;
  }
  const StepRecords& records() const { return records_; }

 private:
  std::span<const Seen> seen(std::string_view marks) {
    seen_.clear();
    for (const char mark : marks)
      seen_.push_back(mark == '.'   ? Seen::kNone
                      : mark == '=' ? Seen::kUnchanged
                      : mark == 'w' ? Seen::kWritten
                                    : Seen::kOther);
    return seen_;
  }

  StepRecords records_;
  std::vector<Seen> seen_;
};

const std::vector<std::size_t> kP{0}, kQ{1};

TEST(StepRecords, AStepWithoutAnythingRecorded) {
  Walk walk;
  EXPECT_EQ(walk.look("nn").text(), "||");
  EXPECT_TRUE(walk.records().any_gradient());
  EXPECT_FALSE(walk.records().checks(/*skip_nonfinite=*/false));
  EXPECT_TRUE(walk.records().checks(/*skip_nonfinite=*/true));
  EXPECT_FALSE(walk.records().skips(/*skip_nonfinite=*/false));
  EXPECT_TRUE(walk.records().skips(/*skip_nonfinite=*/true));
  EXPECT_EQ(walk(Measured{}).text(), "norm|measured|measured");
  EXPECT_EQ(walk(StepEnded{}).text(), "||");
  EXPECT_FALSE(walk.records().any_gradient());
}

TEST(StepRecords, AScaledStepHasOneNormUntilItEnds) {
  Walk walk;
  EXPECT_EQ(walk(ScaleRecorded{Scaled::kAll}).text(), "scaled||");
  EXPECT_EQ(walk.measured().text(), "scaled norm held|held measured|held measured");
  EXPECT_EQ(walk.look("==").text(), "scaled norm held|held measured|held measured");
  EXPECT_TRUE(walk.records().is_scaled(/*narrow=*/true));
  EXPECT_TRUE(walk.records().is_scaled(/*narrow=*/false));
  EXPECT_TRUE(walk.records().checks(/*skip_nonfinite=*/false));
  EXPECT_TRUE(walk.records().skips(/*skip_nonfinite=*/false));
  EXPECT_EQ(walk(StepEnded{}).text(), "||");
}

TEST(StepRecords, TheSameScaleLeavesTheNormAndAnotherDoesNot) {
  Walk walk;
  walk(ScaleRecorded{Scaled::kAll}).measured();
  EXPECT_EQ(walk(ScaleRecorded{Scaled::kAll, /*is_new=*/false}).text(),
            "scaled norm held|held measured|held measured");
  EXPECT_EQ(walk(ScaleRecorded{Scaled::kAll}).text(),
            "scaled old-norm held|held measured|held measured");
}

TEST(StepRecords, AClipNeedsTheNorm) {
  Walk walk;
  EXPECT_TRUE(walk.look("nn")(ClipRecorded{1}).records().checks(/*skip_nonfinite=*/false));
  EXPECT_FALSE(walk.records().skips(/*skip_nonfinite=*/false));
}

// GradScaler::unscale_, then clip_grad_norm_ and the step.
TEST(StepRecords, ClipAfterUnscale) {
  Walk walk;
  walk.look("nn")(Unscaled{}).look("ww")(Held{});
  EXPECT_EQ(walk.text(), "scaled-16 held|held|held");
  EXPECT_TRUE(walk.records().is_scaled(/*narrow=*/true));
  EXPECT_FALSE(walk.records().is_scaled(/*narrow=*/false));
  EXPECT_EQ(walk.look("==")(Measured{})(ClipRecorded{1}).look("==").text(),
            "scaled-16 norm held clip|held measured|held measured");
  EXPECT_EQ(walk.records().max_norm, 1);
}

// In PyTorch the clip has written to .grad by then.
TEST(StepRecords, AClipIsAFactorOfWhatItWasMeasuredOn) {
  Walk another_scale;
  another_scale.measured()(ClipRecorded{1})(ScaleRecorded{Scaled::kAll});
  EXPECT_EQ(another_scale.text(),
            "scaled old-norm held factors|held measured factor|held measured factor");
  Walk unscaled_after;
  unscaled_after.measured()(ClipRecorded{1})(Unscaled{});
  EXPECT_EQ(unscaled_after.text(), "scaled-16 old-norm held factors|held factor|held factor");
  Walk written_to;
  written_to.measured()(ClipRecorded{1}).look("w=");
  EXPECT_EQ(written_to.text(), "old-norm held factors|held factor|held measured factor");
  Walk one_more_gradient;
  one_more_gradient.look("n.")(Measured{})(Held{})(ClipRecorded{1}).look("=n");
  EXPECT_EQ(one_more_gradient.text(), "old-norm held factors|held measured factor|");
}

TEST(StepRecords, UnscaledTwiceWithAClipBetween) {
  Walk walk;
  walk.look("nn")(Unscaled{}).look("nn")(Held{})(Measured{})(ClipRecorded{1});
  EXPECT_EQ(walk(Unscaled{}).look("ww").text(),
            "scaled-16 old-norm held factors|held factor|held factor");
}

TEST(StepRecords, AGradientTakesItsRecordsWithIt) {
  for (const auto& [marks, left] : {std::pair("n=", "|held limit"), {".=", "|held limit"}}) {
    Walk walk;
    walk.look("nn")(FactorRecorded{kP})(LimitRecorded{kQ, 1})(Shown{0})(Held{});
    EXPECT_EQ(walk.text(), "held factors|held factor shown|held limit");
    EXPECT_EQ(walk.look(marks).text(), std::string("held factors|") + left) << marks;
  }
}

TEST(StepRecords, AMeasuredGradientThatIsGoneOutdatesTheNorm) {
  Walk walk;
  EXPECT_EQ(walk.measured().look(".=").text(), "old-norm held||held measured");
  EXPECT_EQ(walk(Measured{})(ClipRecorded{1}).look(".n").text(), "||") << "none is left";
}

TEST(StepRecords, TheLeastLimitCounts) {
  Walk walk;
  walk.look("nn")(LimitRecorded{kP, 2})(LimitRecorded{kP, 5});
  EXPECT_EQ(walk.records().tensors[0].limit, 2);
  EXPECT_TRUE(walk.records().any_limit());
  walk(LimitRecorded{kP, 1});
  EXPECT_EQ(walk.records().tensors[0].limit, 1);
}

TEST(StepRecords, AGradientThatIsGoneIsInNoStepWhetherItWasHeldOrNot) {
  Walk walk;
  EXPECT_EQ(walk.look("nn")(Measured{}).look("..").text(), "old-norm||");
  EXPECT_FALSE(walk.records().any_gradient());
}

TEST(StepRecords, AFactorOrLimitIsOfTheTensorsThatAreNamed) {
  EXPECT_EQ(Walk().look("nn")(FactorRecorded{kP}).text(), "factors|factor|");
  EXPECT_EQ(Walk().look("nn")(LimitRecorded{kQ, 1}).text(), "factors||limit");
  EXPECT_EQ(Walk().look("nn")(FactorRecorded{kP}).look("n=").text(), "factors|factor|")
      << "for any gradient, as long as none is held";
  EXPECT_EQ(Walk().look("nn")(FactorRecorded{})(LimitRecorded{{}, 1}).text(), "||");
  EXPECT_FALSE(Walk().look("nn")(FactorRecorded{kP}).records().any_limit());
}

// zero_grad() and a backward, or gradients put in by the program.
TEST(StepRecords, NewGradientsLeaveWhatHoldsForAny) {
  for (const std::string_view marks : {"nn", "..", "n."}) {
    Walk scaled;
    scaled(FlagRecorded{})(NonfiniteAccepted{})(ScaleRecorded{Scaled::kAll}).measured();
    scaled(ClipRecorded{1})(Shown{0});
    EXPECT_EQ(scaled.look(marks).text(), "scaled flag take||") << marks;
    Walk unscaled;  // the wide ones of these were not divided
    unscaled.look("nn")(Unscaled{})(Held{})(FlagRecorded{});
    EXPECT_EQ(unscaled.look(marks).text(), "flag||") << marks;
  }
}

TEST(StepRecords, OneOfTheGradientsKeepsTheScale) {
  Walk walk;
  EXPECT_EQ(walk.look("nn")(Unscaled{})(Held{}).look("n=").text(), "scaled-16 held||held");
}

TEST(StepRecords, AFlagDecidesWhateverTheGradientsAre) {
  Walk walk;
  EXPECT_FALSE(walk.look("nn").records().skips(/*skip_nonfinite=*/false));
  EXPECT_TRUE(walk(FlagRecorded{}).records().skips(/*skip_nonfinite=*/false));
  EXPECT_FALSE(walk.records().checks(/*skip_nonfinite=*/false));
  EXPECT_FALSE(walk(NonfiniteAccepted{}).records().skips(/*skip_nonfinite=*/true));
  EXPECT_EQ(walk.text(), "flag take||");
  EXPECT_EQ(walk(FlagRecorded{/*is_defined=*/false}).text(), "take||");
}

// update() without a step: the same gradients may be stepped later, and no others.
TEST(StepRecords, AStepNotTaken) {
  for (const std::string_view marks : {"==", "=."}) {
    Walk walk;
    walk(ScaleRecorded{Scaled::kAll}).look(marks == "==" ? "nn" : "n.")(Measured{})(Held{});
    walk(ClipRecorded{1}).end_inspection(marks);
    EXPECT_EQ(walk.records().scope, Scope::kSealed);
    EXPECT_TRUE(walk.look(marks).records().clips());
    EXPECT_EQ(walk.records().norm, Norm::kCurrent);
  }
  for (const std::string_view marks : {"w=", "n=", ".="}) {
    Walk walk;
    walk(ScaleRecorded{Scaled::kAll}).measured().end_inspection("==");
    EXPECT_EQ(walk(Held{}).text(), "scaled norm sealed|held measured|held measured");
    EXPECT_EQ(walk.look(marks).text(), "scaled||") << marks;
    Walk seen_at_once;
    seen_at_once(FlagRecorded{})(ScaleRecorded{Scaled::kAll}).measured().end_inspection(marks);
    EXPECT_EQ(seen_at_once.text(), "||") << marks;
  }
  Walk one_more;
  one_more.look("n.")(Unscaled{})(Held{}).end_inspection("=.");
  EXPECT_EQ(one_more.look("=n").text(), "||");
  Walk not_held;
  not_held.look("nn")(ScaleRecorded{Scaled::kAll}).end_inspection("nn");
  EXPECT_EQ(not_held.text(), "scaled||");
}

TEST(StepRecords, AnotherScaleBreaksTheSeal) {
  Walk walk;
  walk.measured().end_inspection("==")(ScaleRecorded{Scaled::kAll, /*is_new=*/false});
  EXPECT_EQ(walk.look("w=").text(), "scaled old-norm held|held|held measured");
  Walk unscaled;
  unscaled.measured().end_inspection("==")(Unscaled{});
  EXPECT_EQ(unscaled.look("ww").text(), "scaled-16 old-norm held|held|held");
}

// Scale, factors and limits are in .grad, which is FP32; a 16-bit gradient that comes later is
// scaled.
TEST(StepRecords, FinishedInFp32ThenIn16Bits) {
  Walk walk;
  walk(FlagRecorded{})(NonfiniteAccepted{})(ScaleRecorded{Scaled::kAll}).measured();
  walk(ClipRecorded{1})(LimitRecorded{kQ, 1})(Applied{});
  EXPECT_EQ(walk.text(), "scaled-16 flag take||");
  EXPECT_EQ(walk.look("nn")(Held{}).look("n=").text(), "scaled-16 held flag take||held");
  Walk without_scale;
  without_scale.measured()(ClipRecorded{1});
  EXPECT_EQ(without_scale(Applied{}).text(), "||");
}

TEST(StepRecords, FollowTheirTensors) {
  Walk walk;
  walk.measured()(LimitRecorded{kP, 1})(ClipRecorded{1});
  const std::vector<std::ptrdiff_t> from{-1, 1, 0};
  EXPECT_EQ(walk(Reordered{from}).text(), "old-norm held factors||held factor|held factor limit");
  EXPECT_EQ(walk.look("n==").text(), "old-norm held factors||held factor|held factor limit");
}

}  // namespace
}  // namespace demi::optim
